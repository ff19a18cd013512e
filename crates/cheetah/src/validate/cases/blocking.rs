//! Tools at an attachment: what they read, and what comes of their writes.
//!
//! Owns these cases. Never: an attachment of others. Called by `super`. Tests: `lab/tests/validate.rs`.

use super::acquiring::is_here;
use crate::validate::case::{Case, Done, Stop};
use crate::validate::image::{self, Answers};
use crate::validate::probe::Export;
use crate::validate::requirements::On::Pool;
use crate::validate::stage::Stage;
use cheetah_nbd::Command;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// What tools mount with.
const FUSE: &str = "/dev/fuse";
/// Who mounts for others than root.
const FUSERMOUNT: &str = "fusermount3";
/// Of a write, and where.
const BYTES: u32 = 4096;
const AT: u64 = 8192;

/// The hash of all that an export gives.
fn same_content(stage: &Stage, case: &mut Case, export: &mut Export) -> Done {
    case.did("read all of the export");
    let expected = &stage.image.whole.sha256;
    match export.hash()? {
        Ok(Answers { sha256, .. }) => case.same("SHA-256 of all that was read", expected, &sha256),
        Err(at) => case.check(
            format!("SHA-256 of all that was read: {expected}"),
            format!("an error at byte {at}"),
            false,
        ),
    };
    Ok(())
}

pub async fn read_export(stage: &mut Stage, case: &mut Case) -> Done {
    let evidence = stage.evidence(case).await?;
    let socket = stage.export(case, Pool, &evidence, &["--read-only"]).await?;
    let mut export = Export::connect(&socket)?;
    case.same("bytes of the export", &stage.image.bytes.to_string(), &export.bytes().to_string());
    same_content(stage, case, &mut export)
}

/// Whether this user can mount at all.
fn check_fuse() -> Done {
    let not = |why: &str| {
        Stop::NotShown(format!("FUSE cannot be used here: {why}; `cheetah doctor` says what to do"))
    };
    File::options().read(true).write(true).open(FUSE).map_err(|why| not(&format!("{FUSE}: {why}")))?;
    match rustix::process::geteuid().is_root() || is_here(FUSERMOUNT) {
        true => Ok(()),
        false => Err(not(&format!("{FUSERMOUNT} is not here"))),
    }
}

pub async fn read_file(stage: &mut Stage, case: &mut Case) -> Done {
    check_fuse()?;
    let evidence = stage.evidence(case).await?;
    let path = stage.mounted(case, &evidence).await?;
    case.did(format!("read all of {}", path.display()));
    let whole = stage.image.whole.sha256.clone();
    match crate::load::blocking(move || {
        image::of_file(&path).map_err(|why| crate::files::cannot("read", &path, &why))
    })
    .await
    {
        Ok(Answers { sha256, .. }) => case.same("SHA-256 of the file", &whole, &sha256),
        Err(failure) => case.check(format!("SHA-256 of the file: {whole}"), failure.text(), false),
    };
    Ok(())
}

/// Each command that writes, and the content afterwards.
fn try_to_write(stage: &Stage, case: &mut Case, socket: &Path) -> Done {
    let mut export = Export::connect(socket)?;
    let said = if export.is_read_only() { "it does" } else { "it does not" };
    case.check("the export says that it is read-only", said, export.is_read_only());
    for command in [Command::Write, Command::WriteZeroes, Command::Trim] {
        case.did(format!("sent {command:?} of {BYTES} bytes at {AT}"));
        let answer = export.change(command, AT, BYTES)?;
        let observed = answer.map_or_else(|| "acknowledged".to_owned(), |errno| format!("{errno:?}"));
        case.check(format!("{command:?} is answered with an error"), observed, answer.is_some());
    }
    same_content(stage, case, &mut export)
}

pub async fn write_export(stage: &mut Stage, case: &mut Case) -> Done {
    let evidence = stage.evidence(case).await?;
    let socket = stage.export(case, Pool, &evidence, &["--read-only"]).await?;
    try_to_write(stage, case, &socket)
}

pub async fn write_unsealed(stage: &mut Stage, case: &mut Case) -> Done {
    let (image, volume) = (stage.image_file(case)?, stage.volume(Pool, "unsealed"));
    let load = ["load", &image.display().to_string(), &volume, "--writable"];
    let said = stage.run(case, Pool, &load).await?;
    case.succeeded(said)?;
    let socket = stage.export(case, Pool, &volume, &["--read-only"]).await?;
    try_to_write(stage, case, &socket)
}

pub async fn write_file(stage: &mut Stage, case: &mut Case) -> Done {
    check_fuse()?;
    let evidence = stage.evidence(case).await?;
    let path = stage.mounted(case, &evidence).await?;
    case.did(format!("opened {} for writing", path.display()));
    let tried = File::options().write(true).open(&path).and_then(|mut file| file.write_all(b"changed"));
    let observed = tried.as_ref().map_or_else(ToString::to_string, |()| "it was written".to_owned());
    let refused = tried
        .is_err_and(|why| matches!(why.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem));
    case.check("it is refused", observed, refused);
    let sha256 = image::of_file(&path)?.sha256;
    case.same("SHA-256 of the file afterwards", &stage.image.whole.sha256, &sha256);
    Ok(())
}

pub async fn write_sealed(stage: &mut Stage, case: &mut Case) -> Done {
    let (evidence, image) = (stage.evidence(case).await?, stage.image_file(case)?);
    stage.is_not_attached(case, "attaching it for writing is refused", &evidence, "--writable").await?;
    let load = ["load", &image.display().to_string(), &evidence, "--overwrite"];
    let said = stage.run(case, Pool, &load).await?;
    case.ends_with("loading over it is refused", 4, &said);
    let said = stage.run(case, Pool, &["verify", &evidence]).await?;
    let report = case.succeeded(said)?;
    case.check("donors hold what was sealed", format!("right: {}", report["right"]), report["right"] == true);
    Ok(())
}
