//! A pool's authority: a key of P-256 that certifies members.
//!
//! Owns making it, and what its certificates say: who, of which role and pool, for how long, and at which
//! addresses others find it. Never: who is certified (core says), where it is stored, or a clock but for the
//! validity of what it signs. Invariant: its own certificate is made once and stays, for members know it by
//! its hash. Tests: `tests/members.rs`.

use super::invitation::Fingerprint;
use cheetah_core::coordinator::AuthorityRecord;
use cheetah_core::map::PoolId;
use cheetah_core::members::{Member, Role, uri};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SignatureAlgorithm,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use time::OffsetDateTime;

/// Clocks of a lab differ: what is certified now was good for a while.
const BACKDATED: Duration = Duration::from_secs(300);
/// Nobody is there to renew it by hand.
const AUTHORITY_LASTS: Duration = Duration::from_secs(20 * 366 * 24 * 3600);
const POINT_BYTES: usize = 65;

/// Why there is no authority, or none of its certificates.
#[derive(Debug)]
pub struct BadAuthority(String);

impl fmt::Display for BadAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadAuthority {}

fn bad(what: &str) -> impl Fn(rcgen::Error) -> BadAuthority {
    move |why| BadAuthority(format!("{what}: {why}"))
}

/// What makes members of a pool.
pub struct Authority {
    pool: PoolId,
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Somebody's own key, in the form in which it is kept.
pub struct Key(KeyPair);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn make() -> Result<Key, BadAuthority> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map(Key).map_err(bad("a key cannot be made"))
    }

    /// # Errors
    /// It is no key of P-256 in PEM.
    pub fn from_pem(pem: &str) -> Result<Key, BadAuthority> {
        KeyPair::from_pem(pem).map(Key).map_err(bad("the private key cannot be read"))
    }

    /// For the file that only its owner reads.
    #[must_use]
    pub fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// What is certified of it: an uncompressed point in hexadecimal digits.
    #[must_use]
    pub fn public(&self) -> String {
        self.0.public_key_raw().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The private key, for what agrees on a secret with it.
    pub(crate) fn pkcs8(&self) -> Vec<u8> {
        self.0.serialize_der()
    }

    pub(super) fn der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.serialize_der()).into()
    }
}

/// A public key that came from elsewhere.
struct Point([u8; POINT_BYTES]);

impl Point {
    fn of(text: &str) -> Option<Point> {
        let mut point = [0; POINT_BYTES];
        if text.len() != 2 * POINT_BYTES || !text.is_ascii() {
            return None;
        }
        for (at, byte) in point.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Point(point))
    }
}

impl PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn named(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn valid(params: &mut CertificateParams, lasts: Duration) {
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - BACKDATED, now + lasts);
}

/// The same each time, but for the validity: what it signs names it by this.
fn authority_params(pool: PoolId) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("cheetah pool {pool}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    valid(&mut params, AUTHORITY_LASTS);
    params
}

impl Authority {
    /// One that nobody knows yet.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub fn make(pool: PoolId) -> Result<AuthorityRecord, BadAuthority> {
        let key = Key::make()?.0;
        let certificate = authority_params(pool).self_signed(&key);
        let certificate = certificate.map_err(bad("the pool's certificate cannot be made"))?.pem();
        Ok(AuthorityRecord { certificate, key: key.serialize_pem() })
    }

    /// As it is stored.
    ///
    /// # Errors
    /// What is stored is no certificate, or no key.
    pub fn of(pool: PoolId, record: &AuthorityRecord) -> Result<Authority, BadAuthority> {
        let pem = record.certificate.clone();
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|why| BadAuthority(format!("the pool's certificate cannot be read: {why}")))?;
        let issuer = Issuer::new(authority_params(pool), Key::from_pem(&record.key)?.0);
        Ok(Authority { pool, certificate, pem, issuer })
    }

    /// Its certificate in PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// What its certificate is known by.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// A certificate in PEM for a member that has this public key, and is found at these addresses: others'
    /// programs look for an address in the certificate of a server, Cheetah's for the member.
    ///
    /// # Errors
    /// The key is none.
    pub fn certify(
        &self,
        member: Member,
        key: &str,
        at: &[IpAddr],
        lasts: Duration,
    ) -> Result<String, BadAuthority> {
        let point = Point::of(key).ok_or_else(|| BadAuthority("that is no point of P-256".to_owned()))?;
        let text = |text: String| text.try_into().map_err(bad("a name cannot be written"));
        let mut params = CertificateParams::default();
        params.distinguished_name = named(&member.to_string());
        params.subject_alt_names = vec![SanType::URI(text(uri(self.pool, member))?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if member.role.serves() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            params.subject_alt_names.push(SanType::DnsName(text("localhost".to_owned())?));
            let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
            let at = at.iter().map(|ip| ip.to_canonical()).filter(|ip| !ip.is_loopback());
            params.subject_alt_names.extend(loopback.into_iter().chain(at).map(SanType::IpAddress));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        valid(&mut params, lasts);
        let signed = params.signed_by(&point, &self.issuer);
        Ok(signed.map_err(bad("the certificate cannot be made"))?.pem())
    }

    /// Whom the authority's own process is to others.
    ///
    /// # Errors
    /// The kernel gives no random numbers.
    pub(crate) fn own(&self, at: &[IpAddr], lasts: Duration) -> Result<(Key, String, Member), BadAuthority> {
        let key = Key::make()?;
        let member = Member { id: cheetah_core::map::MemberId(0), role: Role::Coordinator };
        let certificate = self.certify(member, &key.public(), at, lasts)?;
        Ok((key, certificate, member))
    }
}
