//! The folder of `cheetah report`: what is in it, that programs of others accept it, and that whatever others
//! wrote stands in it as text.

use std::path::Path;

use cheetah_lab::pool::Pool;
use cheetah_lab::{hash, tools};
use serde_json::{Value, json};

fn read(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).unwrap_or_else(|why| panic!("{name}: {why}"))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("one").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn minisign(directory: &Path, file: &str) -> std::process::Command {
    let mut command = tools::command("minisign");
    command.args(["-Vm", file, "-p", "pool.pub"]).current_dir(directory);
    command
}

#[test]
fn a_report_has_all_and_programs_of_others_check_it() {
    let mut pool = Pool::start();
    for name in ["one", "two"] {
        pool.donate(name, "128M");
    }
    let image = pool.scratch().file("disk <b>.dd", &vec![7; (3 << 20) + 512]);
    let shown = image.display().to_string();
    let notes = "<script>alert(1)</script> & so on";
    pool.ok(["load", &shown, "case7", "--case", "2026-117", "--examiner", "R. Roe", "--notes", notes]);
    pool.attach_export("case7", &[]);
    pool.detach("case7");

    let directory = pool.scratch().join("report");
    let report = pool.json(["report", "case7", &directory.display().to_string()]);
    let files = [
        "custody.log",
        "custody.log.minisig",
        "manifest.json",
        "manifest.json.minisig",
        "pool.pub",
        "report.html",
        "report.json",
    ];
    assert_eq!(names(&directory), files);
    assert_eq!(report["files"].as_array().map(Vec::len), Some(files.len()), "{report}");

    // The page: whole, alone, and with everything that matters.
    tools::expect_success(tools::command("xmllint").arg("--noout").arg(directory.join("report.html")));
    let page = read(&directory, "report.html");
    tools::names(
        &page,
        &["2026-117", "R. Roe", &hash::of_file(&image), "sealed by", "attached read-only", "detached"],
    );
    tools::names(&page, &["&lt;script&gt;alert(1)&lt;/script&gt; &amp; so on", "disk &lt;b&gt;.dd"]);
    for others in ["<script", "http://", "https://", "src=", "href="] {
        let alone = page.replace("http://www.w3.org/1999/xhtml", "");
        assert!(!alone.contains(others), "{others} is in the page");
    }

    // The others: signed, and what the page says of them.
    let facts: Value = serde_json::from_str(&read(&directory, "report.json")).expect("JSON");
    assert_eq!(facts["manifest"]["case"]["case"], json!("2026-117"), "{facts}");
    let last = facts["entries"].as_array().and_then(|all| all.last()).expect("a log");
    assert_eq!((&last["event"], &facts["head"]["sequence"]), (&json!("detached"), &last["sequence"]));
    for file in ["custody.log", "manifest.json"] {
        tools::expect_success(&mut minisign(&directory, file));
        let text = read(&directory, file).replacen("case7", "case8", 1);
        std::fs::write(directory.join(file), text).expect("written");
        tools::expect_failure(&mut minisign(&directory, file));
    }

    // Nothing is written over, and a volume that is gone has its log.
    let said = pool.run(["report", "case7", &directory.display().to_string()]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    tools::names(&said.err, &["is there already", "name a folder"]);
    pool.ok(["delete", "case7"]);
    let gone = pool.scratch().join("gone");
    tools::names(&pool.ok(["report", "case7", &gone.display().to_string()]), &["report.html"]);
    assert!(!gone.join("manifest.json").exists());
    tools::names(&read(&gone, "report.html"), &["the volume was deleted", "sealed by"]);
    let said = pool.run(["report", "ghost", &pool.scratch().join("ghost").display().to_string()]);
    assert_eq!(said.status.code(), Some(4), "{}", said.err);
    assert!(!pool.scratch().join("ghost").exists());
}
