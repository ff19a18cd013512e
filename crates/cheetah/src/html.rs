//! Pages for a browser and for paper: well-formed XHTML that needs nothing beside it.
//!
//! Owns the mark-up. Never: what a page says. Invariant: whatever came from a disk, a user or another machine
//! stands in it as text, and never as mark-up. Called by `handover::page` and `validate::page`. Tests: below.

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1a1a1a}\
h1{font-size:1.6em;margin-bottom:0}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #bbb}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.25em .8em .25em 0;\
border-bottom:1px solid #e4e4e4}th{font-weight:600;white-space:nowrap}td,pre{overflow-wrap:anywhere}\
pre,code{font:13px/1.45 ui-monospace,monospace;white-space:pre-wrap}pre{background:#f5f5f5;padding:.8em}\
.bad td{background:#fdecea}.note{color:#555}@media print{body{margin:0;max-width:none}h2{break-after:avoid}}";

/// As text inside of an element or an attribute.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(c),
            // No such character may stand in XML, and some turn what follows round.
            c if c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c) => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

pub fn row(name: &str, value: &str) -> String {
    format!("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value))
}

pub fn section(title: &str, body: &str) -> String {
    format!("<h2>{}</h2>\n{body}", escaped(title))
}

pub fn table(rows: &[String]) -> String {
    format!("<table>\n{}</table>\n", rows.concat())
}

pub fn note(text: &str) -> String {
    format!("<p class=\"note\">{}</p>\n", escaped(text))
}

/// All of a page. `body` is mark-up.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escaped(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_is_text() {
        let shown = row("Notes", "<script>alert('x')</script> & \"y\" \u{202e}\u{7}");
        assert_eq!(
            shown,
            "<tr><th>Notes</th><td>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;y&quot; \u{fffd}\u{fffd}</td></tr>\n"
        );
    }
}
