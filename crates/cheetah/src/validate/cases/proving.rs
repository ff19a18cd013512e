//! The manifest and the log of custody: as they are, and altered.
//!
//! Owns these cases. Never: the rules of verifying (`manifest`, `custody`). Called by `super`. Tests:
//! `lab/tests/validate.rs`.

use crate::files;
use crate::validate::case::{Case, Done, Stop};
use crate::validate::requirements::On::Pool;
use crate::validate::stage::Stage;
use cheetah_rim::control::signing::{self, PublicKey};
use std::fs;

pub async fn manifest(stage: &mut Stage, case: &mut Case) -> Done {
    let evidence = stage.evidence(case).await?;
    let (file, altered) = (stage.file("manifest.json"), stage.file("altered.json"));
    let shown = file.display().to_string();
    let said = stage.run(case, Pool, &["manifest", &evidence, &shown]).await?;
    let report = case.succeeded(said)?;
    let (text, signature) = (fs::read(&file)?, fs::read_to_string(files::beside(&file, "minisig"))?);
    let key: PublicKey = report["key"]
        .as_str()
        .and_then(|key| key.parse().ok())
        .ok_or_else(|| Stop::NotShown("the pool gave no public key".to_owned()))?;
    let said = signing::verify(&text, &signature, &key);
    case.check(
        "its signature is the pool's",
        said.as_ref().map_or_else(ToString::to_string, Clone::clone),
        said.is_ok(),
    );
    let hashes = &report["manifest"]["hashes"];
    for (key, expected) in [("md5", &stage.image.whole.md5), ("sha256", &stage.image.whole.sha256)] {
        case.same(&format!("{key} in it"), expected, hashes[key].as_str().unwrap_or("none"));
    }
    let said = stage.run(case, Pool, &["verify", &evidence, "--manifest", &shown]).await?;
    case.ends_with("the volume is what it says", 0, &said);
    // One digit of a hash that nobody compares while it is read.
    let changed = String::from_utf8_lossy(&text).replacen(&stage.image.whole.md5, &"0".repeat(32), 1);
    fs::write(&altered, &changed)?;
    fs::copy(files::beside(&file, "minisig"), files::beside(&altered, "minisig"))?;
    case.did("changed the MD5 in it");
    let said = signing::verify(changed.as_bytes(), &signature, &key);
    let observed = said.as_ref().map_or_else(ToString::to_string, Clone::clone);
    case.check("the signature does not fit any more", observed, said.is_err());
    let arguments = ["verify", &evidence, "--manifest", &altered.display().to_string()];
    let said = stage.run(case, Pool, &arguments).await?;
    case.ends_with("the altered one is refused", 6, &said);
    Ok(())
}

pub async fn custody(stage: &mut Stage, case: &mut Case) -> Done {
    let evidence = stage.evidence(case).await?;
    let file = stage.file("custody.log");
    let shown = file.display().to_string();
    let said = stage.run(case, Pool, &["log", &evidence, "--export", &shown]).await?;
    let report = case.succeeded(said)?;
    let key = report["key"].as_str().unwrap_or_default().to_owned();
    let hash = report["head"]["hash"].as_str().unwrap_or_default();
    let head = format!("{}:{hash}", report["head"]["sequence"]);
    let events: Vec<&str> = report["entries"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry["event"].as_str())
        .collect();
    let wanted = ["created", "fill-begun", "filled", "sealed"];
    let has_all = wanted.iter().all(|event| events.contains(event));
    case.check(format!("the log has {}", wanted.join(", ")), events.join(", "), has_all);
    let verify = ["verify-log", &shown, "--key", &key, "--head", &head];
    let said = stage.run(case, Pool, &verify).await?;
    case.ends_with("it verifies", 0, &said);
    let text = fs::read_to_string(&file)?;
    let signature = fs::read_to_string(files::beside(&file, "minisig"))?;
    let cut: String = {
        let lines: Vec<&str> = text.lines().collect();
        lines[..lines.len().saturating_sub(1)].iter().map(|line| format!("{line}\n")).collect()
    };
    let changed = [
        ("an entry changed", text.replacen("\"sequence\":1,", "\"sequence\":9,", 1)),
        ("its end cut off", cut),
    ];
    for (number, (what, text)) in changed.into_iter().enumerate() {
        let altered = stage.file(&format!("altered-{number}.log"));
        fs::write(&altered, text)?;
        fs::write(files::beside(&altered, "minisig"), &signature)?;
        case.did(format!("wrote the log with {what}"));
        let path = altered.display().to_string();
        let said = stage.run(case, Pool, &["verify-log", &path, "--key", &key, "--head", &head]).await?;
        case.ends_with(&format!("with {what} it is refused"), 6, &said);
    }
    Ok(())
}
