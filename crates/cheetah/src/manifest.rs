//! `cheetah manifest`: what a sealed volume holds, in a text that the pool signed; and whether a volume is
//! what such a text says.
//!
//! Owns the files of it, and the comparison. Never: what stands in it (`core::coordinator::seal`), or the
//! signature (`rim::control::signing`). Invariants: the text is written as it was signed, byte for byte; no
//! file that was there is replaced unasked. Called by `main` and `verify`. Tests: `lab/tests/seal.rs`.

use crate::cli;
use crate::failure::{Exit, Failure};
use crate::files;
use crate::output;
use crate::pool::{find, unexpected};
use cheetah_core::api::{Answer, Call, Manifest, SignedText};
use cheetah_core::api::{Attached, MANIFEST_OF_CIPHERTEXT};
use cheetah_core::text::written;
use cheetah_rim::control::Client;
use cheetah_rim::control::signing::{self, PublicKey};
use serde::Serialize;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Of the name of its signature, the end.
const SIGNATURE: &str = "minisig";
/// What each says that it is.
const FORMAT: &str = "cheetah manifest";
/// A manifest is small; what is larger is none.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Serialize)]
struct ManifestReport {
    manifest: Manifest,
    /// The text that was signed is that of the file.
    signature: String,
    /// The pool's public key.
    key: String,
    /// Those that were written.
    files: Vec<String>,
}

/// The manifest of a sealed volume, as the pool signed it.
pub async fn signed(pool: &Client, name: &str) -> Result<SignedText, Failure> {
    match pool.call(Call::Manifest { name: name.to_owned() }).await? {
        Answer::Signed(signed) => Ok(*signed),
        other => Err(unexpected(&other)),
    }
}

pub async fn manifest(options: cli::Manifest) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let signed = signed(&pool, &options.name).await?;
    let files = match &options.file {
        Some(file) => write_both(file, &signed, options.overwrite)?,
        None => Vec::new(),
    };
    if options.json.json {
        let SignedText { text, signature, key } = signed;
        let manifest = serde_json::from_str(&text).map_err(|why| not_one("the pool's answer", &why))?;
        return output::json(&ManifestReport { manifest, signature, key, files });
    }
    match files.first() {
        Some(file) => {
            output::line(&format!("wrote {}; anybody checks it so:", files.join(" and ")));
            output::line(&format!("minisign -Vm {file} -P {}", signed.key));
        }
        None => output::raw(signed.text.as_bytes()),
    }
    Ok(())
}

fn write_both(file: &Path, signed: &SignedText, overwrite: bool) -> Result<Vec<String>, Failure> {
    let both = [(file.to_path_buf(), &signed.text), (files::beside(file, SIGNATURE), &signed.signature)];
    if let Some((there, _)) = both.iter().find(|(path, _)| !overwrite && path.exists()) {
        let text = format!("{} is there already: name another file, or say --overwrite", there.display());
        return Err(Failure::new(Exit::Refused, text));
    }
    for (path, text) in &both {
        files::write(path, text, overwrite)?;
    }
    Ok(both.iter().map(|(path, _)| written(path.as_os_str().as_bytes())).collect())
}

fn not_one(what: &str, why: &serde_json::Error) -> Failure {
    Failure::new(Exit::DataLost, format!("{what} is no manifest: {why}"))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, FILE_BYTES_MAX), &mut bytes)?;
    Ok(bytes)
}

/// Whether the volume was sealed as what the file says, and whose word that is: for people.
pub async fn compare(pool: &Client, granted: &Attached, path: &Path) -> Result<String, Failure> {
    let Attached { map, content, .. } = granted;
    let bytes = read(path).map_err(|why| files::cannot("read", path, &why))?;
    let shown = path.display().to_string();
    let given: Manifest = serde_json::from_slice(&bytes).map_err(|why| not_one(&shown, &why))?;
    if given.format != FORMAT || given.version > MANIFEST_OF_CIPHERTEXT {
        let Manifest { format, version, .. } = &given;
        let text = format!(
            "{shown} is a '{format}' of version {version}, which this program does not know: check it with a newer one"
        );
        return Err(Failure::new(Exit::Refused, text));
    }
    let beside = files::beside(path, SIGNATURE);
    let by = match read(&beside) {
        Ok(signature) => {
            let key = signed(pool, &map.name).await?.key;
            let key: PublicKey =
                key.parse().map_err(|why| Failure::failed(format!("the pool's key: {why}")))?;
            let signature = String::from_utf8_lossy(&signature);
            signing::verify(&bytes, &signature, &key)
                .map_err(|why| Failure::new(Exit::DataLost, format!("{}: {why}", beside.display())))?;
            "signed by this pool"
        }
        Err(why) if why.kind() == ErrorKind::NotFound => "not signed",
        Err(why) => return Err(files::cannot("read", &beside, &why)),
    };
    let differs = if given.id != map.volume {
        Some(format!("is of volume {} with the identity {}", given.volume, given.id))
    } else if Some(given.root()) != map.seal() || given.bytes != map.size {
        Some(format!("says {} bytes with BLAKE3 {}", given.bytes, given.root()))
    } else if content.sealed.as_ref().is_some_and(|sealed| sealed.blake3() != given.hashes.blake3) {
        // Of ciphertext that the root proves its contents follow, and whoever sealed it said what they are.
        Some(format!("says that its contents have BLAKE3 {}", given.hashes.blake3))
    } else {
        None
    };
    match differs {
        None => Ok(format!("it is sealed as {shown} says, which is {by}")),
        Some(what) => Err(Failure::new(
            Exit::DataLost,
            format!("{shown} {what}, and volume '{}' is something else", map.name),
        )),
    }
}
