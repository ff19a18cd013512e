//! TLS to an etcd that others certify.
//!
//! Owns the three files of a directory that name its authority and this machine's own certificate, called as
//! libnbd calls them. Never: a connection (`http`), or a certificate of a pool's (`members`). Tests:
//! `lab/tests/etcd.rs`.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";

/// A directory without what is needed. Its own text says which file.
#[derive(Debug)]
pub struct BadCertificates(String);

impl BadCertificates {
    pub(super) fn missing() -> Self {
        let what = format!("etcds:// needs --etcd-certificates DIR, a directory with {AUTHORITY}");
        BadCertificates(format!("{what}, and with {CERTIFICATE} and {KEY} where etcd asks for them"))
    }

    pub(super) fn unasked() -> Self {
        BadCertificates("--etcd-certificates goes with --state etcds://".to_owned())
    }
}

impl fmt::Display for BadCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadCertificates {}

/// `None`: there is no such file.
fn read(directory: &Path, name: &str) -> Result<Option<Vec<u8>>, BadCertificates> {
    match std::fs::read(directory.join(name)) {
        Ok(pem) => Ok(Some(pem)),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(bad(directory, name, why)),
    }
}

fn bad(directory: &Path, name: &str, why: impl fmt::Display) -> BadCertificates {
    BadCertificates(format!("{} cannot be used: {why}", directory.join(name).display()))
}

/// Believes `ca-cert.pem`, and shows `client-cert.pem` where there is one.
pub(super) fn config(directory: &Path) -> Result<Arc<ClientConfig>, BadCertificates> {
    let none = |name| bad(directory, name, "it is not there");
    let mut roots = RootCertStore::empty();
    let pem = read(directory, AUTHORITY)?.ok_or_else(|| none(AUTHORITY))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|why| bad(directory, AUTHORITY, why))?;
        roots.add(certificate).map_err(|why| bad(directory, AUTHORITY, why))?;
    }
    if roots.is_empty() {
        return Err(bad(directory, AUTHORITY, "it has no certificate"));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|why| bad(directory, AUTHORITY, why))?.with_root_certificates(roots);
    let Some(pem) = read(directory, CERTIFICATE)? else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|why| bad(directory, CERTIFICATE, why))?;
    let key = read(directory, KEY)?.ok_or_else(|| none(KEY))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|why| bad(directory, KEY, why))?;
    let config = builder.with_client_auth_cert(chain, key);
    Ok(Arc::new(config.map_err(|why| bad(directory, CERTIFICATE, why))?))
}
