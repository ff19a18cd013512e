//! Who this process is to its pool, and the commands about tokens and members.
//!
//! Owns where the identity is looked for, coming in by a token, and renewing a certificate while the process
//! lives. Never: what a member may do (core), or files of an identity (`rim::members`). Invariant: an address
//! that begins with cheetah:// is spoken to by TLS or not at all. Tests: below; `lab/tests/members.rs`.

use crate::cli::{self, PoolArg};
use crate::cli_members::{Grant, Join, Member as MemberCommand, NewToken, RevokeMember, RevokeToken, Token};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::pool::{done, find, unexpected};
use cheetah_core::api::{Answer, Call, MemberStatus, NewToken as NewTokenCall, RefusalCode, TokenStatus};
use cheetah_core::members::Role;
use cheetah_rim::clock::seconds_since_1970 as now;
use cheetah_rim::control::{CallError, Client, Coordination, NotEnrolled, enrol_by};
use cheetah_rim::members::{IDENTITY_VARIABLE, Identity, IdentityError, Invitation};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const SCHEME: &str = "cheetah://";
/// How long a donor's token of a new pool is good for.
const FIRST_TOKEN_LASTS: Duration = Duration::from_secs(24 * 3600);
/// Of an address with a token, and far more.
const LINE_BYTES_MAX: u64 = 4096;

/// An address with a token, kept from the command line.
pub const INVITATION_VARIABLE: &str = "CHEETAH_INVITATION";

/// What names a key file in place of `--key-file`.
const KEY_FILE_VARIABLE: &str = "CHEETAH_KEY_FILE";

static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
static KEY_FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
/// Only who lends comes in by the token of an address that is the pool's.
static LENDS: OnceLock<bool> = OnceLock::new();

/// Said once, before anything is looked for.
pub fn begin(named: Option<&Path>, lends: bool) {
    let _ = LENDS.set(lends);
    let found = named.map(Path::to_owned).or_else(|| Identity::usual_directory(lends));
    let _ = DIRECTORY.set(found.map(absolute));
}

/// Of a command that makes a pool for its own time: nobody's identity but the pool's own.
pub fn begin_in(directory: PathBuf) {
    let _ = DIRECTORY.set(Some(directory));
}

/// Where this process has its identity.
pub fn directory() -> Option<&'static PathBuf> {
    DIRECTORY.get()?.as_ref()
}

/// Said once, before a pool is asked for anything: the file that keys of encrypted volumes come from, if they
/// do.
pub fn use_key_file(named: Option<&Path>) {
    let variable =
        || std::env::var_os(KEY_FILE_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let _ = KEY_FILE.set(named.map(Path::to_owned).or_else(variable).map(absolute));
}

/// Daemons work in another directory.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn key_file() -> Option<&'static PathBuf> {
    KEY_FILE.get()?.as_ref()
}

/// For a process that is started by this one.
pub fn environment() -> impl Iterator<Item = (&'static str, &'static PathBuf)> {
    let identity = directory().map(|directory| (IDENTITY_VARIABLE, directory));
    identity.into_iter().chain(key_file().map(|file| (KEY_FILE_VARIABLE, file)))
}

fn need_directory() -> Result<&'static PathBuf, Failure> {
    let none =
        "neither XDG_CONFIG_HOME nor HOME is set: name a directory for the identity with --identity DIR";
    directory().ok_or_else(|| Failure::usage(none))
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Failure {
        Failure::failed(error.to_string())
    }
}

impl From<NotEnrolled> for Failure {
    fn from(error: NotEnrolled) -> Failure {
        match error {
            NotEnrolled::Call(error) => error.into(),
            NotEnrolled::Kept(error) => error.into(),
            NotEnrolled::Failed(why) => Failure::failed(why),
        }
    }
}

/// The pool that is meant, by the command, the environment, or what this user has joined before: the
/// addresses of its coordinators, each with how it is spoken to.
pub fn named(pool: &PoolArg) -> Result<Option<String>, Failure> {
    let variable = || std::env::var("CHEETAH_POOL").ok().filter(|url| !url.trim().is_empty());
    let url = match pool.pool.clone().or_else(variable) {
        Some(url) => Some(url),
        None => match directory() {
            Some(directory) => Identity::pool_url(directory)?,
            None => None,
        },
    };
    Ok(url.map(|url| with_schemes(&url)))
}

/// Nobody says http:// by leaving something out.
fn with_schemes(urls: &str) -> String {
    let with_scheme = |url: &str| match url.trim() {
        url if url.contains("://") => url.to_owned(),
        url => format!("{SCHEME}{url}"),
    };
    urls.split(',').map(with_scheme).collect::<Vec<_>>().join(",")
}

/// A client of the pool at this address, whichever kind it is.
pub async fn client(url: &str) -> Result<Client, Failure> {
    let pool = client_at(url.trim()).await?;
    Ok(match key_file() {
        Some(file) => pool.with_key_file(file),
        None => pool,
    })
}

async fn client_at(url: &str) -> Result<Client, Failure> {
    if !url.starts_with(SCHEME) {
        return Client::new(url).map_err(|why| Failure::usage(why.to_string()));
    }
    let lends = LENDS.get().copied().unwrap_or_default();
    let (identity, url) = match invitation(url) {
        Some(invitation) if lends => {
            let Member { identity, url, .. } = come_in(invitation).await?;
            (identity, url)
        }
        // It is for `join`: whoever types a command first would use it up.
        Some(invitation) => {
            let url = format!("{SCHEME}{}", invitation.at);
            (own(&url)?, url)
        }
        None => (own(url)?, url.to_owned()),
    };
    let pool = Client::of_identity(&url, identity).map_err(|why| Failure::usage(why.to_string()))?;
    // It may be good for now; who is no member any more is told so by the call that follows.
    let _ = pool.renew_if_due().await;
    let certified = pool.clone();
    tokio::spawn(async move { certified.stay_certified().await });
    Ok(pool)
}

fn own(url: &str) -> Result<Identity, Failure> {
    let directory = need_directory()?;
    let shown = directory.display();
    let none = || {
        let what = format!("{url} lets in members only, and {shown} holds no identity");
        Failure::new(Exit::Refused, what).advise(
            "join with a token (`cheetah join cheetah://HOST:PORT/TOKEN`), or name one with --identity DIR; a pool in the clear \
             is written http://HOST:PORT",
        )
    };
    let identity = Identity::load(directory)?.ok_or_else(none)?;
    if identity.due().1 == 0 {
        let what = format!("the certificate in {shown} has expired");
        return Err(Failure::new(Exit::Refused, what).advise("join again with a new token"));
    }
    Ok(identity)
}

/// The invitation in an address, or the one that was taken out of it.
fn invitation(url: &str) -> Option<Invitation> {
    let of = |url: &str| Invitation::is_in(url).then(|| Invitation::read(url).ok()).flatten();
    let kept = || std::env::var(INVITATION_VARIABLE).ok().and_then(|kept| of(&kept));
    of(url).or_else(|| kept().filter(|kept| format!("{SCHEME}{}", kept.at) == url.trim_end_matches('/')))
}

/// Somebody who has come in.
struct Member {
    identity: Identity,
    url: String,
    /// By this token.
    is_new: bool,
}

/// By a token; who has come in by one of that pool before needs none.
async fn come_in(invitation: Invitation) -> Result<Member, Failure> {
    let directory = need_directory()?;
    let url = format!("{SCHEME}{}", invitation.at);
    if let Some(identity) = Identity::load(directory)?
        && identity.credentials().fingerprint() == invitation.authority
        && identity.due().1 > 0
    {
        let member = identity.credentials().member();
        if !is_revoked(&url, &identity).await {
            return Ok(Member { identity, url, is_new: false });
        }
        output::note(&format!("{member} was revoked, and comes in anew"));
        Identity::forget(directory)?;
    }
    let identity = enrol_by(&invitation, directory).await?;
    let member = identity.credentials().member();
    output::note(&format!("joined as {member}; the identity is in {}", directory.display()));
    Ok(Member { identity, url, is_new: true })
}

pub(crate) fn without_token(argument: &OsStr) -> Option<(String, String)> {
    let text = argument.to_str()?;
    let (option, url) = match text.split_once('=') {
        Some((option, url)) if option.starts_with("--") => (format!("{option}="), url),
        _ => (String::new(), text),
    };
    let invitation = Invitation::is_in(url).then(|| Invitation::read(url).ok()).flatten()?;
    Some((format!("{option}{SCHEME}{}", invitation.at), url.to_owned()))
}

/// Becomes the same command without the token that stands on its command line, which everybody on this
/// machine can read: it is in the environment then. Returns only where there is none, or why it did not.
pub fn hide_token() -> Result<(), Failure> {
    let Some((_, url)) = std::env::args_os().find_map(|argument| without_token(&argument)) else {
        return Ok(());
    };
    let fault = |why: std::io::Error| Failure::failed(format!("cannot start again without the token: {why}"));
    let without = |argument: OsString| without_token(&argument).map_or(argument, |(plain, _)| plain.into());
    let mut again = Command::new(std::env::current_exe().map_err(fault)?);
    again.args(std::env::args_os().skip(1).map(without)).env(INVITATION_VARIABLE, url);
    Err(fault(again.exec()))
}

/// By the word of its pool; one that cannot be asked says nothing.
async fn is_revoked(url: &str, identity: &Identity) -> bool {
    let Ok(pool) = Client::of_member(url, Arc::clone(identity.credentials())) else { return false };
    matches!(
        pool.call(Call::Pool).await,
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::Forbidden
    )
}

pub async fn join(options: Join) -> Result<(), Failure> {
    let given = match options.url.as_str() {
        "-" => std::io::read_to_string(std::io::stdin().take(LINE_BYTES_MAX))
            .map_err(|why| Failure::usage(format!("standard input has no address: {why}")))?,
        given => given.to_owned(),
    };
    let invitation = match invitation(given.trim()) {
        Some(invitation) => invitation,
        None => Invitation::read(given.trim()).map_err(Failure::usage)?,
    };
    let Member { identity, url, is_new } = come_in(invitation).await?;
    let member = identity.credentials().member();
    if !is_new {
        let what = format!("{} holds {member} of this pool already", need_directory()?.display());
        let advice = "the token is not used: another member needs a directory of its own, --identity DIR, or \
                      remove this one first";
        return Err(Failure::new(Exit::Refused, what).advise(advice));
    }
    if member.role == Role::Donor {
        let directory = need_directory()?.display();
        output::note(&format!(
            "to lend as this member: cheetah donate auto --pool {url} --identity {directory}"
        ));
    }
    let text = format!("{member} of the pool at {url}; without --pool this pool is meant from now on");
    done(&options.json, &text)
}

/// What the first start of a pool of members says, and whom it makes its admin: who started it. The pool is
/// made whatever comes of that.
pub async fn found(running: &Coordination) {
    if let Err(failure) = own_admin(running).await {
        output::note(&format!("nobody is made this pool's admin: {}", failure.text()));
    }
    if running.is_new() {
        match running.invite(Role::Donor, None, FIRST_TOKEN_LASTS).await {
            Ok(Some(invitation)) => output::line(&format!(
                "lend to it within a day: cheetah donate auto --pool {}",
                invitation.url()
            )),
            Ok(None) => {}
            Err(refusal) => output::note(&format!("there is no token for donors: {}", refusal.message)),
        }
    }
}

/// Makes who started the coordinator an admin, if nobody of that directory is one, and keeps it one as long
/// as the coordinator runs: there may be no other who could let it in again.
async fn own_admin(running: &Coordination) -> Result<(), Failure> {
    let directory = need_directory()?;
    let url = running.url_for_others();
    let identity = match Identity::load(directory)? {
        Some(identity) if identity.credentials().pool() != running.pool() => {
            return Err(Failure::failed(format!(
                "{} holds an identity of another pool",
                directory.display()
            ))
            .advise("name another with --identity DIR, or remove it, and start again"));
        }
        Some(identity) if identity.due().1 > 0 => identity,
        _ => {
            let minute = Duration::from_secs(60);
            let Some(invitation) = running.invite(Role::Admin, Some(1), minute).await? else { return Ok(()) };
            let identity = enrol_by(&invitation, directory).await?;
            let member = identity.credentials().member();
            output::note(&format!("{} holds {member} of this pool, for you", directory.display()));
            identity
        }
    };
    identity.find_pool_at(&url)?;
    let own = Client::of_identity(&url, identity).map_err(|why| Failure::failed(why.to_string()))?;
    tokio::spawn(async move { own.stay_certified().await });
    Ok(())
}

pub async fn token(command: Token) -> Result<(), Failure> {
    match command {
        Token::New(options) => new_token(options).await,
        Token::List(options) => list_tokens(options).await,
        Token::Revoke(RevokeToken { token, pool, json }) => {
            find(&pool).await?.call(Call::RevokeToken { token }).await?;
            done(&json, &format!("revoked token {token}"))
        }
    }
}

pub async fn member(command: MemberCommand) -> Result<(), Failure> {
    match command {
        MemberCommand::List(options) => list_members(options).await,
        MemberCommand::Revoke(options) => revoke_member(options).await,
    }
}

/// Gives the key of an encrypted volume to a member.
pub async fn grant(options: Grant) -> Result<(), Failure> {
    let Grant { name, member, pool, json } = options;
    let pool = find(&pool).await?;
    let known = match pool.call(Call::Member { member }).await? {
        Answer::Member(known) => known,
        other => return Err(unexpected(&other)),
    };
    if known.key.is_empty() {
        return Err(Failure::failed(format!(
            "the pool does not know the public key of member {member} yet: it does once a program of that member has \
             renewed its certificate"
        )));
    }
    let how = cheetah_client::Options { read_only: true, incomplete: true, ..Default::default() };
    let lease = cheetah_client::Lease::for_tools(&pool, &name, &how).await?;
    let given = match lease.granted.map.encrypted {
        true => {
            cheetah_client::give_key(&pool, &lease.granted, member, &known.key).await.map_err(Failure::from)
        }
        false => Err(Failure::usage(format!("volume '{name}' is not encrypted, and needs no key"))),
    };
    // One that is not given back runs out by itself.
    let _ = lease.give_back().await;
    given?;
    done(&json, &format!("gave member {member} ({}) the key of {name}", known.name))
}

async fn revoke_member(options: RevokeMember) -> Result<(), Failure> {
    let RevokeMember { member, pool, json } = options;
    let pool = find(&pool).await?;
    let known = members(&pool).await?.into_iter().find(|known| known.member == member);
    pool.call(Call::RevokeMember { member }).await?;
    if let Some(by) = known.and_then(|known| known.token)
        && tokens(&pool).await?.iter().any(|left| left.token == by)
    {
        let text =
            format!("it came in by token {by}, which is still good: `cheetah token revoke {by}` ends that");
        output::note(&text);
    }
    done(&json, &format!("revoked member {member}"))
}

/// Makes a token, as an admin.
async fn invite(
    pool: &Client,
    role: Role,
    uses: Option<u32>,
    lasts: Duration,
) -> Result<(Invitation, TokenStatus), Failure> {
    let credentials = pool.credentials().ok_or_else(|| {
        Failure::usage(
            "this pool is in the clear and has no members: its coordinator was started with --plaintext",
        )
    })?;
    let at = pool.url().replace(SCHEME, "");
    let drawn = Invitation::draw(&at, credentials.fingerprint());
    let invitation = drawn.map_err(|why| Failure::failed(format!("no random numbers: {why}")))?;
    let new = NewTokenCall { hash: invitation.hash(), role, uses, seconds: lasts.as_secs() };
    match pool.call(Call::NewToken(new)).await? {
        Answer::Token(status) => Ok((invitation, status)),
        other => Err(unexpected(&other)),
    }
}

/// Lets a donor in of which the identity is kept in that directory, as an admin.
pub async fn let_donor_in(pool: &Client, directory: &Path) -> Result<(), Failure> {
    let (invitation, _) = invite(pool, Role::Donor, Some(1), Duration::from_secs(60)).await?;
    enrol_by(&invitation, directory).await?;
    Ok(())
}

async fn new_token(options: NewToken) -> Result<(), Failure> {
    let NewToken { role, uses, expires, pem, pool, json } = options;
    let pool = find(&pool).await?;
    let (invitation, status) = invite(&pool, role, Some(uses).filter(|uses| *uses > 0), expires).await?;
    if let Some(directory) = pem {
        let identity = enrol_by(&invitation, &directory).await?;
        let (member, shown) = (identity.credentials().member(), directory.display());
        return done(&json, &format!("{shown} holds {member}, for programs of others"));
    }
    if json.json {
        return output::json(&serde_json::json!({ "token": status.token, "url": invitation.url() }));
    }
    output::line(&invitation.url());
    Ok(())
}

async fn tokens(pool: &Client) -> Result<Vec<TokenStatus>, Failure> {
    match pool.call(Call::Tokens).await? {
        Answer::Tokens(tokens) => Ok(tokens),
        other => Err(unexpected(&other)),
    }
}

async fn members(pool: &Client) -> Result<Vec<MemberStatus>, Failure> {
    match pool.call(Call::Members).await? {
        Answer::Members(members) => Ok(members),
        other => Err(unexpected(&other)),
    }
}

async fn list_tokens(options: cli::Report) -> Result<(), Failure> {
    let tokens = tokens(&find(&options.pool).await?).await?;
    if options.json.json {
        return output::json(&serde_json::json!({ "tokens": tokens }));
    }
    let row = |token: &TokenStatus| {
        let left = token.uses_left.map_or("all who have it".to_owned(), |left| left.to_string());
        let still = token.expires.saturating_sub(now());
        vec![token.token.to_string(), token.role.to_string(), left, token.used.to_string(), show_time(still)]
    };
    let rows: Vec<_> = tokens.iter().map(row).collect();
    let head = ["TOKEN", "ROLE", "FOR", "USED", "GOOD FOR"];
    output::lay_out(&head, &rows).iter().for_each(|line| output::line(line));
    Ok(())
}

async fn list_members(options: cli::Report) -> Result<(), Failure> {
    let members = members(&find(&options.pool).await?).await?;
    if options.json.json {
        return output::json(&serde_json::json!({ "members": members }));
    }
    let row = |member: &MemberStatus| {
        let ago = show_time(now().saturating_sub(member.certified));
        vec![member.member.to_string(), member.role.to_string(), member.name.clone(), format!("{ago} ago")]
    };
    let rows: Vec<_> = members.iter().map(row).collect();
    let head = ["MEMBER", "ROLE", "CAME IN AS", "CERTIFIED"];
    output::lay_out(&head, &rows).iter().for_each(|line| output::line(line));
    Ok(())
}

/// The largest unit that says something.
fn show_time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_scheme_is_of_a_pool_of_members() {
        let read = ["a", "a:1, b", "http://a,http://b", "cheetah://a:1/T"].map(with_schemes);
        assert_eq!(
            read,
            ["cheetah://a", "cheetah://a:1,cheetah://b", "http://a,http://b", "cheetah://a:1/T"]
        );
    }

    #[test]
    fn a_token_is_taken_out_of_what_others_can_read() {
        let token = "A".repeat(64);
        let plain = |text: String| without_token(OsStr::new(&text)).map(|(plain, _)| plain);
        assert_eq!(plain(format!("cheetah://a:1/{token}")).as_deref(), Some("cheetah://a:1"));
        let (taken, kept) =
            without_token(OsStr::new(&format!("--pool=cheetah://a:1,b/{token}"))).expect("one");
        assert_eq!((taken.as_str(), kept), ("--pool=cheetah://a:1,b", format!("cheetah://a:1,b/{token}")));
        for other in ["cheetah://a:1", "--pool", "80G", "--listen=10.0.0.7:0", "nbd://a/b"] {
            assert_eq!(plain(other.to_owned()), None, "{other}");
        }
    }

    #[test]
    fn times_are_shown_in_one_unit() {
        let shown = [0, 119, 120, 7200, 172_800].map(show_time);
        assert_eq!(shown, ["0 s", "119 s", "2 min", "2 h", "2 days"]);
    }
}
