//! TLS to servers that the world certifies: what HTTPS needs.
//!
//! Owns: a connection to who is believed by the authorities of `cheetah_link`. Never: a certificate of ours,
//! or a connection without one of theirs. Called by `http`. Tests: `lab/tests/remote.rs`.

use cheetah_link::tls;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

fn config() -> Result<Arc<ClientConfig>, tls::NoTls> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, tls::NoTls>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let roots = tls::authorities()?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
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
