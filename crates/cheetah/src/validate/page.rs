//! The page of a validation, in the form in which a method's validation is recorded: requirement, test,
//! acceptance criterion, result, limitation.
//!
//! Owns its text. Never: what there is to say, or mark-up (`html`). Called by `super`. Tests:
//! `lab/tests/validate.rs`.

use super::case::{Judged, Outcome};
use super::facts::{Facts, Machine};
use super::image::{Answers, Image};
use super::requirements::{FORM, LIMITS, On, Requirement};
use super::{Known, SUMS, Verdict};
use crate::html::{document, escaped, note, row, section, table};
use cheetah_core::api::{VALIDATION_HTML, VALIDATION_JSON};
use cheetah_core::units::{show_bytes, show_time};

pub(super) fn page(known: &Known) -> String {
    let title = format!("Validation of {} on pool {}", known.facts.program.version, known.facts.pool.pool);
    let mut body = format!("<h1>{}</h1>\n", escaped(&title));
    body +=
        &note(&format!("{} to {}, by this machine's clock.", show_time(known.begun), show_time(known.ended)));
    body += &section("What was shown", &summary(known));
    body += &section("With what, and where", &circumstances(known));
    let requirements: String = known.judged.iter().map(requirement).collect();
    body += &section("Requirements, one by one", &requirements);
    let limits: String = LIMITS.iter().map(|limit| format!("<li>{}</li>\n", escaped(limit))).collect();
    body += &section("Limits of all of this", &format!("<ul>\n{limits}</ul>\n"));
    body += &section("How to check this", &checks());
    document(&title, &body)
}

/// Marks a row that is not good news.
fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Failed => " class=\"bad\"",
        Verdict::NotShown | Verdict::NotAskedFor => " class=\"note\"",
        Verdict::Passed => "",
    }
}

fn summary(known: &Known) -> String {
    let mut rows = vec!["<tr><th>Requirement</th><th>What it asks for</th><th>Result</th></tr>\n".to_owned()];
    for judged in &known.judged {
        let (Requirement { id, text, .. }, verdict) = (judged.requirement, judged.verdict());
        rows.push(format!(
            "<tr{}><td><a href=\"#{id}\">{id}</a></td><td>{}</td><td><b>{}</b></td></tr>\n",
            class(verdict),
            escaped(text),
            verdict.word()
        ));
    }
    let statement = format!("<p><b>{}</b></p>\n", escaped(&known.statement()));
    let words = "\"Not shown\" means that a test could not be done here: nothing is known then, and it does not count as \
                 passed. The reason stands with the test.";
    statement + &table(&rows) + &note(words)
}

fn circumstances(known: &Known) -> String {
    let Facts { examiner, notes, command, program, machine, tools, pool } = &known.facts;
    let mut rows = Vec::new();
    let given = [("Examiner", examiner), ("Notes", notes)];
    rows.extend(given.into_iter().filter_map(|(name, text)| Some(row(name, text.as_ref()?))));
    rows.push(row("Command", command));
    rows.push(row("Program", &format!("{}, SHA-256 {}", program.version, program.sha256)));
    let Machine { host, system, kernel, processors, uid } = machine;
    let who = if *uid == 0 { "root".to_owned() } else { format!("user {uid}") };
    rows.push(row("Machine", &format!("{host}: {system}, {kernel}, {processors} processors, as {who}")));
    for tool in tools {
        rows.push(row(tool.tool, tool.version.as_deref().unwrap_or("not here")));
    }
    let how = if pool.members_only { "members only, by TLS" } else { "in the clear" };
    rows.push(row("Pool", &format!("{} at {}, {how}", pool.pool, pool.url)));
    for donor in &pool.donors {
        let lends = show_bytes(donor.bytes);
        rows.push(row("Donor", &format!("{} on {} lends {lends}", donor.name, donor.host)));
    }
    let Image { bytes, whole, with_zeros } = &known.image;
    let known_by =
        if known.image.is_published() { "published hashes" } else { "hashes computed by the program" };
    rows.push(row("Image", &format!("{bytes} bytes, {known_by}")));
    let hashes =
        |Answers { md5, sha1, sha256 }: &Answers| format!("MD5 {md5}, SHA-1 {sha1}, SHA-256 {sha256}");
    rows.push(row("Its hashes", &hashes(whole)));
    rows.push(row("With zeros for the bad sector", &hashes(with_zeros)));
    rows.extend(known.left.iter().map(|name| row("Could not be deleted", name)));
    let form = format!("The form follows: {}.", FORM.join("; "));
    table(&rows) + &note(&form)
}

fn requirement(judged: &Judged) -> String {
    let Requirement { id, text, criterion, sources, limits, .. } = judged.requirement;
    let rows = [
        row("Requirement", text),
        row("Accepted when", criterion),
        row("Asked for by", &sources.join("; ")),
        row("Result", judged.verdict().word()),
        row("Not shown by this", limits),
    ];
    let cases: String = judged.outcomes.iter().map(one_case).collect();
    format!("<h3 id=\"{id}\">{id}</h3>\n{}{cases}", table(&rows))
}

fn one_case(outcome: &Outcome) -> String {
    let Outcome { case, title, on, verdict, why, did, checks, seconds } = outcome;
    let place = match on {
        On::Pool => "on the pool",
        On::PrivatePool => "in a private pool on this machine",
    };
    let mut text = format!("<h4>{}: {} &#8211; {}</h4>\n", escaped(case), escaped(title), verdict.word());
    if *verdict == Verdict::NotAskedFor {
        return text;
    }
    text += &note(&format!("Done {place}, in {seconds:.1} s."));
    if let Some(why) = why {
        text += &format!("<p>Not shown: {}.</p>\n", escaped(why.trim_end_matches('.')));
    }
    if !did.is_empty() {
        text += &format!("<pre>{}</pre>\n", escaped(&did.join("\n")));
    }
    if checks.is_empty() {
        return text;
    }
    let mut rows = vec!["<tr><th>Expected</th><th>Observed</th><th>Result</th></tr>\n".to_owned()];
    rows.extend(checks.iter().map(|check| {
        let verdict = if check.passed { Verdict::Passed } else { Verdict::Failed };
        format!(
            "<tr{}><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            class(verdict),
            escaped(&check.expected),
            escaped(&check.observed),
            verdict.word()
        )
    }));
    text + &table(&rows)
}

fn checks() -> String {
    let why = format!(
        "The pool signed the hashes of this page and of {VALIDATION_JSON}, which says the same for programs. Its signature says \
         which member of the pool made them and when, and that nobody changed them since. Compare the key with one that was \
         given in another way: pool.pub came with the files."
    );
    let lines = [
        format!("minisign -Vm {SUMS} -p pool.pub"),
        format!("sha256sum -c {SUMS}"),
        format!("jq -r '.requirements[] | \"\\(.verdict) \\(.requirement)\"' {VALIDATION_JSON}"),
    ];
    note(&why)
        + &format!("<pre>{}</pre>\n", escaped(&lines.join("\n")))
        + &note(&format!("{VALIDATION_HTML} is well-formed XHTML, and needs nothing beside it."))
}
