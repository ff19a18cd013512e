//! TLS to servers that the world certifies: what HTTPS needs.
//!
//! Owns whom to believe: the authorities of this machine, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
//! Never: a certificate of ours, or a connection without one of theirs. Called by `http`. Tests:
//! `lab/tests/remote.rs`.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Why no server can be believed.
#[derive(Clone, Debug)]
enum NoConfig {
    /// No authority was found, and the first thing that was in the way.
    NoAuthority(Option<String>),
    Tls(rustls::Error),
}

impl fmt::Display for NoConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoConfig::NoAuthority(why) => {
                let why = why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
                write!(
                    f,
                    "this machine believes no authority{why}: install ca-certificates, or name a file with SSL_CERT_FILE"
                )
            }
            NoConfig::Tls(why) => why.fmt(f),
        }
    }
}

/// Read once: there are more than a hundred.
fn config() -> Result<Arc<ClientConfig>, NoConfig> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, NoConfig>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (taken, _) = roots.add_parsable_certificates(found.certs);
        if taken == 0 {
            return Err(NoConfig::NoAuthority(found.errors.first().map(ToString::to_string)));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(NoConfig::Tls)?;
        Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
    });
    config.clone()
}

/// Why there is no TLS.
pub(crate) enum NoTls {
    /// Another attempt may have it.
    Broken(io::Error),
    /// Nobody vouches for the server, or for this machine's clock.
    NotBelieved(String),
}

pub(crate) async fn connect(stream: TcpStream, host: &str) -> Result<TlsStream<TcpStream>, NoTls> {
    let config = config().map_err(|why| NoTls::NotBelieved(why.to_string()))?;
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| NoTls::NotBelieved(format!("'{host}' is no name that a certificate has")))?;
    TlsConnector::from(config).connect(name, stream).await.map_err(|why| {
        let told = why.get_ref().and_then(|why| why.downcast_ref::<rustls::Error>());
        match told {
            Some(rustls::Error::InvalidCertificate(what)) => NoTls::NotBelieved(format!(
                "the server's certificate is not good: {what} (SSL_CERT_FILE names a file of authorities to believe)"
            )),
            _ => NoTls::Broken(why),
        }
    })
}
