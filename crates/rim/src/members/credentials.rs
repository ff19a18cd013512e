//! What a member shows of itself, and whom it takes others for.
//!
//! Owns the configurations of TLS for one member: TLS 1.3 alone, both ends certified by the pool's authority,
//! nothing resumed and nothing sent early, so that each connection is checked anew. Never: bytes of a
//! connection, or what a peer may do. Invariant: a renewed certificate holds for connections from then on,
//! with the same key. Tests: `tests/members.rs`.

use super::authority::{Authority, Key};
use super::guests::Guests;
use super::invitation::Fingerprint;
use cheetah_core::map::PoolId;
use cheetah_core::members::{Member, Role, of_uri};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Why a certificate and a key are of no use.
#[derive(Debug)]
pub struct BadCredentials(pub String);

impl fmt::Display for BadCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadCredentials {}

impl From<Error> for BadCredentials {
    fn from(error: Error) -> Self {
        BadCredentials(error.to_string())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The certificate that is shown now.
#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl Shown {
    fn now(&self) -> Arc<CertifiedKey> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Whom a connection for a volume's bytes is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It has them in its memory.
    Donor,
    /// It brings them from their source: the process of a client.
    Filler,
}

/// One member's end of every connection. It holds a private key, and shows none of it.
pub struct Credentials {
    pool: PoolId,
    member: Member,
    authority: CertificateDer<'static>,
    guests: Guests,
    shown: Arc<Shown>,
    to_donors: Arc<ClientConfig>,
    to_fillers: Arc<ClientConfig>,
    to_coordinator: Arc<ClientConfig>,
    for_members: Arc<ServerConfig>,
    for_anybody: Arc<ServerConfig>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Credentials { pool, member, .. } = self;
        f.debug_struct("Credentials").field("pool", pool).field("member", member).finish_non_exhaustive()
    }
}

fn read(pem: &str, what: &str) -> Result<CertificateDer<'static>, BadCredentials> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|why| BadCredentials(format!("{what} cannot be read: {why}")))
}

impl Credentials {
    /// # Errors
    /// They do not belong together, or are none of a member.
    pub fn new(authority: &str, certificate: &str, key: &Key) -> Result<Credentials, BadCredentials> {
        let authority = read(authority, "the certificate of the pool")?;
        let certificate = read(certificate, "the certificate")?;
        let named = member_of(&certificate);
        let (pool, member) = named
            .ok_or_else(|| BadCredentials("the certificate is none of a member of a pool".to_owned()))?;
        let chain = vec![certificate, authority.clone()];
        let shown = CertifiedKey::from_der(chain, key.der(), &provider())?;
        let shown = Arc::new(Shown(RwLock::new(Arc::new(shown))));
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let roots = Arc::new(roots);
        let to = |serves: fn(Role) -> bool| {
            let known = Known::Authority(Arc::clone(&roots));
            client(Servers { known, pool: Some(pool), serves, provider: provider() }, Some(&shown))
        };
        let verifier = || WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider());
        let whole = |why: rustls::server::VerifierBuilderError| BadCredentials(why.to_string());
        let for_members = server(verifier().build().map_err(whole)?, &shown)?;
        let for_anybody = server(verifier().allow_unauthenticated().build().map_err(whole)?, &shown)?;
        Ok(Credentials {
            pool,
            member,
            authority,
            guests: Guests::default(),
            to_donors: to(|role| role == Role::Donor)?,
            to_fillers: to(|role| matches!(role, Role::Client | Role::Admin))?,
            to_coordinator: to(|role| role == Role::Coordinator)?,
            shown,
            for_members,
            for_anybody,
        })
    }

    /// Of the authority's own process.
    pub(crate) fn of_authority(
        authority: &Authority,
        at: &[IpAddr],
        lasts: Duration,
    ) -> Result<(Credentials, Key), BadCredentials> {
        let own = authority.own(at, lasts).map_err(|why| BadCredentials(why.to_string()));
        let (key, certificate, _) = own?;
        Ok((Credentials::new(authority.pem(), &certificate, &key)?, key))
    }

    /// Shows this certificate from now on.
    ///
    /// # Errors
    /// It is no certificate of this member, or of another key.
    pub fn renew(&self, certificate: &str, key: &Key) -> Result<(), BadCredentials> {
        let certificate = read(certificate, "the certificate")?;
        if member_of(&certificate) != Some((self.pool, self.member)) {
            return Err(BadCredentials("the certificate is another member's".to_owned()));
        }
        let chain = vec![certificate, self.authority.clone()];
        let shown = CertifiedKey::from_der(chain, key.der(), &provider())?;
        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(shown);
        Ok(())
    }

    #[must_use]
    pub fn member(&self) -> Member {
        self.member
    }

    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Who is connected to this member's servers.
    #[must_use]
    pub fn guests(&self) -> &Guests {
        &self.guests
    }

    /// Of the pool's authority.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.authority)
    }

    pub(crate) fn to(&self, holder: Holder) -> Arc<ClientConfig> {
        Arc::clone(match holder {
            Holder::Donor => &self.to_donors,
            Holder::Filler => &self.to_fillers,
        })
    }

    pub(crate) fn to_coordinator(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.to_coordinator)
    }

    pub(crate) fn for_members(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.for_members)
    }

    /// For the one place where strangers are heard, the coordinator's.
    pub(crate) fn for_anybody(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.for_anybody)
    }

    /// Who showed these certificates, whose chain TLS has checked.
    pub(crate) fn peer(&self, certificates: Option<&[CertificateDer<'_>]>) -> Option<Member> {
        let (pool, member) = member_of(certificates?.first()?)?;
        (pool == self.pool).then_some(member)
    }
}

/// To a coordinator of which only the hash of its authority's certificate is known.
pub(crate) fn first_contact(authority: Fingerprint) -> Result<Arc<ClientConfig>, BadCredentials> {
    let serves = |role| role == Role::Coordinator;
    let known = Known::Fingerprint(authority);
    client(Servers { known, pool: None, serves, provider: provider() }, None)
}

fn client(servers: Servers, shown: Option<&Arc<Shown>>) -> Result<Arc<ClientConfig>, BadCredentials> {
    let builder =
        ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(servers));
    let mut config = match shown {
        Some(shown) => builder.with_client_cert_resolver(Arc::clone(shown) as Arc<dyn ResolvesClientCert>),
        None => builder.with_no_client_auth(),
    };
    (config.resumption, config.enable_sni) = (Resumption::disabled(), false);
    // Records are `stream`'s.
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

fn server(
    members: Arc<dyn ClientCertVerifier>,
    shown: &Arc<Shown>,
) -> Result<Arc<ServerConfig>, BadCredentials> {
    let builder =
        ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let shown = Arc::clone(shown) as Arc<dyn ResolvesServerCert>;
    let mut config = builder.with_client_cert_verifier(members).with_cert_resolver(shown);
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config.enable_secret_extraction = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// Whom a certificate is of, by its one URI.
fn member_of(certificate: &CertificateDer<'_>) -> Option<(PoolId, Member)> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut uris = certificate.valid_uri_names();
    let named = of_uri(uris.next()?);
    named.filter(|_| uris.next().is_none())
}

/// What is known of the pool's authority.
#[derive(Debug)]
enum Known {
    Authority(Arc<RootCertStore>),
    Fingerprint(Fingerprint),
}

/// Servers of a pool: by its authority and by their roles, not by the addresses that they are reached at.
#[derive(Debug)]
struct Servers {
    known: Known,
    pool: Option<PoolId>,
    serves: fn(Role) -> bool,
    provider: Arc<CryptoProvider>,
}

impl Servers {
    fn roots(&self, shown: &[CertificateDer<'_>]) -> Result<Arc<RootCertStore>, Error> {
        let fingerprint = match &self.known {
            Known::Authority(roots) => return Ok(Arc::clone(roots)),
            Known::Fingerprint(fingerprint) => *fingerprint,
        };
        let own = shown.iter().find(|shown| Fingerprint::of(shown) == fingerprint);
        let own = own.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(own.clone().into_owned())?;
        Ok(Arc::new(roots))
    }
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let roots = self.roots(intermediates)?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &roots, &[], now, algorithms)?;
        let is_server = |(pool, member): (PoolId, Member)| {
            self.pool.is_none_or(|own| own == pool) && (self.serves)(member.role)
        };
        match member_of(end_entity).is_some_and(is_server) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
