//! The pool's authority at work: who is let in at the coordinator's door, and who gets a certificate.
//!
//! Owns the door's TLS, the coordinator's own certificate, the routes about tokens and members, and the
//! first contact of who has a token. Never: who may become a member, or do what (core). Invariants: a
//! certificate is made only for what the machine has answered and stored; who comes in the clear to a
//! pool of members is heard, so that it can be told so, as nobody. Tests: `lab/tests/members.rs`.

use super::client::{CallError, Client};
use super::journal::{PEER, own_name};
use super::machine::Callers;
use super::server::{Given, On, answer, invalid, refusal, with};
use super::wire::answer_body;
use crate::members::{
    Authority, BadAuthority, BadCredentials, Credentials, Identity, IdentityError, Invitation, Key,
    first_contact, hash_of,
};
use axum::Router;
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use cheetah_core::api::{Answer, Call, Enrol, Enrolled, GrantKey, NewToken, Recertify, Refusal, RefusalCode};
use cheetah_core::coordinator::AuthorityRecord;
use cheetah_core::limits::CERTIFICATE_SECONDS;
use cheetah_core::map::PoolId;
use cheetah_core::members::{Caller, Role};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a stranger may take to say who it is.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// Between two looks at the clock. A machine that sleeps, or whose clock is set, has no timer that says so.
const LOOK_PAUSE: Duration = Duration::from_secs(30);
/// What certificates can last.
const LASTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(366 * 24 * 3600);
/// What each connection of TLS begins with.
const TLS_HANDSHAKE: u8 = 0x16;

/// The authority of a pool of members, and its own process as a member.
#[derive(Debug)]
pub(super) struct Membership {
    authority: Authority,
    credentials: Arc<Credentials>,
    key: Key,
    at: Vec<IpAddr>,
    lasts: Duration,
}

/// Who came to the door.
pub(super) enum Met {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum NoMembership {
    /// Certificates were to last shorter or longer than they can.
    Lasts,
    Authority(BadAuthority),
    Credentials(BadCredentials),
}

impl fmt::Display for NoMembership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoMembership::Lasts => f.write_str("certificates last a second to a year"),
            NoMembership::Authority(why) => why.fmt(f),
            NoMembership::Credentials(why) => why.fmt(f),
        }
    }
}

impl Membership {
    pub(super) fn of(
        pool: PoolId,
        record: &AuthorityRecord,
        reached_at: &[SocketAddr],
        lasts: Option<Duration>,
    ) -> Result<Arc<Membership>, NoMembership> {
        let lasts = lasts.unwrap_or(Duration::from_secs(CERTIFICATE_SECONDS));
        if !LASTS.contains(&lasts) {
            return Err(NoMembership::Lasts);
        }
        let authority = Authority::of(pool, record).map_err(NoMembership::Authority)?;
        let at: Vec<IpAddr> = reached_at.iter().map(SocketAddr::ip).collect();
        let own = Credentials::of_authority(&authority, &at, lasts).map_err(NoMembership::Credentials)?;
        let (credentials, key) = (Arc::new(own.0), own.1);
        Ok(Arc::new(Membership { authority, credentials, key, at, lasts }))
    }

    pub(super) fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// Renews the coordinator's own certificate. Never ends.
    pub(super) async fn stay_certified(&self) {
        let mut certified = SystemTime::now();
        loop {
            tokio::time::sleep((self.lasts / 3).min(LOOK_PAUSE)).await;
            // A clock that was set back says nothing of how long ago that was.
            if certified.elapsed().is_ok_and(|since| since < self.lasts / 3) {
                continue;
            }
            certified = SystemTime::now();
            let own = self.credentials.member();
            let certificate = self.authority.certify(own, &self.key.public(), &self.at, self.lasts);
            let renewed = certificate.map_err(|why| why.to_string()).and_then(|certificate| {
                self.credentials.renew(&certificate, &self.key).map_err(|why| why.to_string())
            });
            if let Err(why) = renewed {
                tracing::error!("the coordinator's own certificate is not renewed: {why}");
            }
        }
    }

    /// Makes the certificate that the machine has agreed to.
    fn certify(&self, enrolled: &Enrolled, key: &str) -> Result<Enrolled, Refusal> {
        let member = cheetah_core::members::Member { id: enrolled.member, role: enrolled.role };
        let at: Vec<IpAddr> = PEER.try_with(|peer| *peer).into_iter().collect();
        let certificate = self.authority.certify(member, key, &at, self.lasts);
        let certificate = certificate.map_err(|why| invalid(why.to_string()))?;
        let (authority, lasts) = (self.authority.pem().to_owned(), self.lasts.as_secs());
        Ok(Enrolled { certificate, authority, lasts, ..enrolled.clone() })
    }
}

/// Hears who comes: by TLS with or without a certificate, or in the clear.
pub(super) async fn meet(stream: TcpStream, membership: Option<&Membership>) -> io::Result<(Met, Caller)> {
    let Some(membership) = membership else { return Ok((Met::Plain(stream), Caller::Anyone)) };
    let met = async {
        let mut first = [0; 1];
        if stream.peek(&mut first).await? == 1 && first[0] != TLS_HANDSHAKE {
            return Ok((Met::Plain(stream), Caller::Anyone));
        }
        let tls = TlsAcceptor::from(membership.credentials.for_anybody()).accept(stream).await?;
        let certificates = tls.get_ref().1.peer_certificates();
        let caller = match (certificates, membership.credentials.peer(certificates)) {
            (None, _) => Caller::Stranger,
            (Some(_), Some(member)) => Caller::Member(member),
            (Some(_), None) => return Err(io::Error::other("a certificate of no member")),
        };
        Ok((Met::Tls(Box::new(tls)), caller))
    };
    tokio::time::timeout(HELLO_TIME, met).await.map_err(|_| io::ErrorKind::TimedOut)?
}

pub(super) fn routes() -> Router<Callers> {
    Router::new()
        .route("/v1/tokens", post(new_token).get(|on: On| async move { answer(&on, Call::Tokens).await }))
        .route("/v1/tokens/{token}", delete(revoke_token))
        .route("/v1/members", post(enrol).get(|on: On| async move { answer(&on, Call::Members).await }))
        .route("/v1/members/self", post(recertify))
        .route("/v1/volumes/{name}/keys", post(grant_key))
        .route("/v1/members/{member}", get(member).delete(revoke_member))
        .route("/v1/authority", get(authority))
}

/// For programs of others, which want the authority's certificate in a file: it is no secret.
async fn authority(on: On) -> Response {
    match on.callers.membership() {
        Some(membership) => {
            ([(header::CONTENT_TYPE, "application/x-pem-file")], membership.authority.pem().to_owned())
                .into_response()
        }
        None => refusal(&none()),
    }
}

async fn new_token(on: On, body: Given<NewToken>) -> Response {
    with(body, |new| answer(&on, Call::NewToken(new))).await
}

async fn revoke_token(on: On, Path(token): Path<String>) -> Response {
    match token.parse() {
        Ok(token) => answer(&on, Call::RevokeToken { token }).await,
        Err(why) => refusal(&invalid(format!("the token in the path: {why}"))),
    }
}

/// For a member, and wrapped for it.
async fn grant_key(on: On, Path(name): Path<String>, body: Given<GrantKey>) -> Response {
    with(body, |grant| answer(&on, Call::GrantKey { name, grant })).await
}

async fn member(on: On, Path(member): Path<String>) -> Response {
    match member.parse() {
        Ok(member) => answer(&on, Call::Member { member }).await,
        Err(why) => refusal(&invalid(format!("the member in the path: {why}"))),
    }
}

async fn revoke_member(on: On, Path(member): Path<String>) -> Response {
    match member.parse() {
        Ok(member) => answer(&on, Call::RevokeMember { member }).await,
        Err(why) => refusal(&invalid(format!("the member in the path: {why}"))),
    }
}

async fn enrol(on: On, body: Given<Enrol>) -> Response {
    with(body, |enrol: Enrol| {
        let key = enrol.key.clone();
        let hash = hash_of(&enrol.secret);
        certified(&on, Call::Enrol { enrol, hash }, key)
    })
    .await
}

async fn recertify(on: On, body: Given<Recertify>) -> Response {
    with(body, |recertify: Recertify| {
        let key = recertify.key.clone();
        certified(&on, Call::Recertify(recertify), key)
    })
    .await
}

fn none() -> Refusal {
    Refusal {
        code: RefusalCode::NotFound,
        message: "this pool is in the clear and has no members".to_owned(),
    }
}

async fn certified(on: &On, call: Call, key: String) -> Response {
    let answered = on.callers.call(on.pool, on.caller, call).await;
    let certified = answered.and_then(|answer| match (answer, on.callers.membership()) {
        (Answer::Enrolled(enrolled), Some(membership)) => {
            membership.certify(&enrolled, &key).map(Answer::Enrolled)
        }
        _ => Err(none()),
    });
    match certified {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer_body(&answer)).into_response(),
        Err(bad) => refusal(&bad),
    }
}

/// Makes a token from within the coordinator's own process.
pub(super) async fn invite(
    callers: &Callers,
    at: &str,
    role: Role,
    uses: Option<u32>,
    lasts: Duration,
) -> Result<Option<Invitation>, Refusal> {
    let Some(membership) = callers.membership() else { return Ok(None) };
    let drawn = Invitation::draw(at, membership.authority.fingerprint());
    let invitation = drawn.map_err(|why| invalid(format!("no random numbers: {why}")))?;
    let new = NewToken { hash: invitation.hash(), role, uses, seconds: lasts.as_secs() };
    callers.call(None, Caller::Own, Call::NewToken(new)).await?;
    Ok(Some(invitation))
}

/// Why somebody did not come in, or has no next certificate.
#[derive(Debug)]
pub enum NotEnrolled {
    /// The pool refused, or could not be asked.
    Call(CallError),
    /// What came of it cannot be kept.
    Kept(IdentityError),
    /// This machine gives no key, or the pool's answer is none.
    Failed(String),
}

impl fmt::Display for NotEnrolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotEnrolled::Call(error) => error.fmt(f),
            NotEnrolled::Kept(error) => error.fmt(f),
            NotEnrolled::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for NotEnrolled {}

fn failed(why: impl fmt::Display) -> NotEnrolled {
    NotEnrolled::Failed(why.to_string())
}

fn enrolled(answer: Answer) -> Result<Enrolled, NotEnrolled> {
    match answer {
        Answer::Enrolled(enrolled) => Ok(enrolled),
        other => Err(failed(format!("the coordinator answered something else than was asked: {other:?}"))),
    }
}

/// Exchanges a token for an identity, which is kept in that directory.
///
/// # Errors
/// Nobody came in, or what came of it could not be kept; then the token may be used up.
pub async fn enrol_by(invitation: &Invitation, directory: &std::path::Path) -> Result<Identity, NotEnrolled> {
    Identity::check_free(directory).map_err(NotEnrolled::Kept)?;
    let key = Key::make().map_err(failed)?;
    let tls = first_contact(invitation.authority).map_err(failed)?;
    let pool = Client::of_stranger(&invitation.at, &tls).map_err(failed)?;
    let enrol = Enrol { secret: invitation.secret.clone(), key: key.public(), name: own_name() };
    let answer =
        pool.call(Call::Enrol { enrol, hash: invitation.hash() }).await.map_err(NotEnrolled::Call)?;
    Identity::keep(directory, &enrolled(answer)?, &key, pool.url()).map_err(NotEnrolled::Kept)
}

impl Client {
    /// Gets this member's next certificate, if it is due, and keeps it.
    ///
    /// # Errors
    /// It was refused, or could not be kept.
    pub async fn renew_if_due(&self) -> Result<(), NotEnrolled> {
        let Some(identity) = self.identity().filter(|identity| identity.due().0 == 0) else { return Ok(()) };
        let recertify = Recertify { key: identity.key().public() };
        let answer = self.call(Call::Recertify(recertify)).await.map_err(NotEnrolled::Call)?;
        identity.take(&enrolled(answer)?).map_err(NotEnrolled::Kept)
    }

    /// Keeps the certificate of this member good. Never ends; where nothing is shown, nothing is to be done.
    pub async fn stay_certified(&self) {
        let Some(identity) = self.identity() else { return std::future::pending().await };
        loop {
            let (due, _) = identity.due();
            // No timer says that the machine slept, or that its clock was set.
            tokio::time::sleep(Duration::from_secs(due.max(1)).min(LOOK_PAUSE)).await;
            // Another process of this member may have done it.
            if identity.due().0 > 0 {
                if let Err(why) = identity.reread() {
                    tracing::warn!("{why}");
                }
                continue;
            }
            if let Err(why) = self.renew_if_due().await {
                tracing::warn!("the certificate of this machine is not renewed: {why}");
                tokio::time::sleep(LOOK_PAUSE.min(Duration::from_secs(1 + identity.due().1 / 10))).await;
            }
        }
    }
}
