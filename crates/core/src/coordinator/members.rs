//! Who may call: the pool's authority as it is stored, tokens, members, and what a caller is refused.
//!
//! Owns tokens and members, and the check of each call against who makes it. Never: certificates or the
//! authority's key, which it keeps for the driver and does not look at; secrets of tokens, of which it has
//! hashes. Invariants: in a pool of members nothing is answered to anybody else, but that who has a token
//! becomes one; and what belongs to a member (a lease, a donor) is of no use to another. Tests:
//! `tests/coordinator_members.rs`.

use super::notes::Note;
use super::{Coordinator, Key, Outcome, refuse};
use crate::api::{
    Answer, Call, Enrol, Enrolled, MemberStatus, NewToken, Recertify, Refusal, RefusalCode, TokenStatus,
};
use crate::content::UnixSeconds;
use crate::limits::{MEMBER_NAME_BYTES_MAX, POOL_MEMBERS_MAX, POOL_TOKENS_MAX, TOKEN_SECONDS_MAX};
use crate::map::{DonorId, LeaseToken, MemberId, TokenId};
use crate::members::{Caller, Member, Role, TokenHash, check_role};
use crate::seed::Seed;
use crate::text::harmless;
use crate::units::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The pool's authority, as the driver made it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityRecord {
    /// Its certificate, in PEM.
    pub certificate: String,
    /// Its private key, in PEM: whoever has it makes members.
    pub key: String,
}

impl fmt::Debug for AuthorityRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityRecord").finish_non_exhaustive()
    }
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Its beginning is the record's key.
    pub hash: TokenHash,
    /// What those become who come in by it.
    pub role: Role,
    /// How many may still.
    pub uses_left: Option<u32>,
    /// How many have.
    pub used: u32,
    /// Not good any more from then on.
    pub expires: UnixSeconds,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// The identity, and the record's key.
    pub member: MemberId,
    /// As its certificates say.
    pub role: Role,
    /// By its own word.
    pub name: String,
    /// How it came in.
    pub token: Option<TokenId>,
    /// When it did.
    pub joined: UnixSeconds,
    /// When it got its last certificate.
    pub certified: UnixSeconds,
    /// Its public key.
    #[serde(default)]
    pub key: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    pub(super) authority: Option<AuthorityRecord>,
    pub(super) tokens: BTreeMap<TokenId, TokenRecord>,
    pub(super) members: BTreeMap<MemberId, MemberRecord>,
}

fn forbidden(message: impl Into<String>) -> Refusal {
    refuse(RefusalCode::Forbidden, message)
}

/// An uncompressed point of P-256, as far as its form shows.
fn is_key(key: &str) -> bool {
    key.len() == 130 && key.starts_with("04") && key.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Coordinator {
    /// What the pool's authority is, if it has one: then it is a pool of members.
    #[must_use]
    pub fn authority(&self) -> Option<&AuthorityRecord> {
        self.members.authority.as_ref()
    }

    /// Makes it a pool of members, from its next step on.
    pub fn adopt(&mut self, authority: AuthorityRecord) {
        self.members.authority = Some(authority);
        self.dirty.insert(Key::Authority);
    }

    /// Whether who calls may ask for that.
    pub(super) fn check_caller(&self, request: &Call) -> Result<(), Refusal> {
        let about_members = matches!(
            request,
            Call::NewToken(_)
                | Call::Tokens
                | Call::RevokeToken { .. }
                | Call::Members
                | Call::Member { .. }
                | Call::RevokeMember { .. }
                | Call::Enrol { .. }
                | Call::Recertify(_)
        );
        let members_only = self.members.authority.is_some();
        match self.caller {
            Caller::Own => Ok(()),
            Caller::Anyone if members_only => {
                Err(forbidden("this pool lets in members only, by TLS: write its address as cheetah://"))
            }
            Caller::Anyone if about_members => {
                let message = "this pool is in the clear and has no members: its coordinator was started with --plaintext";
                Err(refuse(RefusalCode::Invalid, message))
            }
            Caller::Anyone => Ok(()),
            Caller::Stranger if matches!(request, Call::Enrol { .. }) => Ok(()),
            Caller::Stranger => Err(forbidden(
                "this pool lets in members only, and there was no certificate: join it with a token (`cheetah join \
                 cheetah://HOST:PORT/TOKEN`), or name the identity of a member with --identity DIR",
            )),
            Caller::Member(member) => self.check_member(member, request),
        }
    }

    fn check_member(&self, member: Member, request: &Call) -> Result<(), Refusal> {
        let known = self.members.members.get(&member.id).filter(|known| known.role == member.role);
        if known.is_none() {
            return Err(forbidden(format!(
                "{member} is not a member of this pool any more: it was revoked; join with a new token"
            )));
        }
        check_role(member.role, request).map_err(|why| forbidden(why.to_string()))?;
        match request {
            Call::Join(join) => self.check_own_donor(join.donor, member),
            Call::Sync { donor, .. } => self.check_own_donor(*donor, member),
            Call::Leave { donor, .. } if member.role == Role::Donor => {
                self.check_own_donor(self.donor_named(donor)?, member)
            }
            Call::Attach { name, .. } if member.role == Role::Donor => self.check_tends(name, member),
            Call::Renew { token, .. }
            | Call::Amend { token, .. }
            | Call::Tell { token, .. }
            | Call::Detach { token, .. } => self.check_own_lease(*token, member),
            _ => Ok(()),
        }
    }

    /// A donor reaches what others hold only of a volume that it was told to tend.
    fn check_tends(&self, name: &str, member: Member) -> Result<(), Refusal> {
        let tender = self.volumes.get(&self.volume_named(name)?).and_then(|volume| volume.tender);
        let own = tender.and_then(|tender| self.donors.get(&tender)?.record.member) == Some(member.id);
        match own {
            true => Ok(()),
            false => Err(forbidden(format!("{member} is not the donor that tends volume '{name}'"))),
        }
    }

    /// One that is not known yet is nobody else's.
    fn check_own_donor(&self, id: DonorId, member: Member) -> Result<(), Refusal> {
        let other = self.donors.get(&id).filter(|donor| donor.record.member != Some(member.id));
        match other {
            Some(donor) => Err(forbidden(format!(
                "donor '{}' came in with another certificate than {member} has",
                donor.record.name
            ))),
            None => Ok(()),
        }
    }

    /// One that is not known is said to be gone by who looks for it.
    fn check_own_lease(&self, token: LeaseToken, member: Member) -> Result<(), Refusal> {
        let other = self.leases.get(&token).filter(|lease| lease.record.member != Some(member.id));
        match other {
            Some(_) => {
                Err(forbidden(format!("this lease was given to another certificate than {member} has")))
            }
            None => Ok(()),
        }
    }

    /// Who calls, for what will be its own.
    pub(super) fn caller_id(&self) -> Option<MemberId> {
        self.caller.member().map(|member| member.id)
    }

    pub(super) fn is_member(&self, id: MemberId) -> bool {
        self.members.members.contains_key(&id)
    }

    /// Of these, who is no member.
    pub(super) fn strangers_of(&self, guests: Vec<MemberId>) -> Vec<MemberId> {
        match self.members.authority {
            Some(_) => guests.into_iter().filter(|id| !self.members.members.contains_key(id)).collect(),
            None => Vec::new(),
        }
    }

    fn drop_old_tokens(&mut self) {
        let now = self.time_of_day;
        let old = self.members.tokens.iter().filter(|(_, token)| token.expires <= now);
        let old: Vec<TokenId> = old.map(|(id, _)| *id).collect();
        for id in old {
            self.members.tokens.remove(&id);
            self.dirty.insert(Key::Token(id));
        }
    }

    pub(super) fn new_token(&mut self, new: NewToken) -> Result<Outcome, Refusal> {
        self.drop_old_tokens();
        let NewToken { hash, role, uses, seconds } = new;
        let invalid = |why: &str| Err(refuse(RefusalCode::Invalid, why));
        if !hash.is_whole() || role == Role::Coordinator || uses == Some(0) {
            return invalid("the token has no hash, no use, or a role that no token gives");
        }
        if !(1..=TOKEN_SECONDS_MAX).contains(&seconds) {
            return invalid("a token is good for a second to a year");
        }
        let id = hash.id();
        if self.members.tokens.len() >= POOL_TOKENS_MAX || self.members.tokens.contains_key(&id) {
            let message = format!("the pool is at its limit of {POOL_TOKENS_MAX} tokens: revoke some");
            return Err(refuse(RefusalCode::Unavailable, message));
        }
        let expires = self.time_of_day.saturating_add(seconds);
        let record = TokenRecord { hash, role, uses_left: uses, used: 0, expires };
        let status = record.status();
        self.members.tokens.insert(id, record);
        self.dirty.insert(Key::Token(id));
        let text = format!("token {id} was made: who has it becomes a {role}");
        self.note(Note { event: "token-made", text, ..Note::default() });
        Ok(Outcome::Answer(Answer::Token(status)))
    }

    pub(super) fn tokens(&mut self) -> Outcome {
        self.drop_old_tokens();
        Outcome::Answer(Answer::Tokens(self.members.tokens.values().map(TokenRecord::status).collect()))
    }

    pub(super) fn revoke_token(&mut self, id: TokenId) -> Result<Outcome, Refusal> {
        self.drop_old_tokens();
        if self.members.tokens.remove(&id).is_none() {
            let message = format!("there is no token {id}; `cheetah token list` shows those there are");
            return Err(refuse(RefusalCode::NotFound, message));
        }
        self.dirty.insert(Key::Token(id));
        let text = format!("token {id} was revoked");
        self.note(Note { event: "token-revoked", text, ..Note::default() });
        Ok(Outcome::Answer(Answer::Done))
    }

    pub(super) fn enrol(
        &mut self,
        seed: &mut Seed,
        enrol: Enrol,
        hash: &TokenHash,
    ) -> Result<Outcome, Refusal> {
        self.drop_old_tokens();
        let (Enrol { secret: _, key, name }, id) = (enrol, hash.id());
        let good = self.members.tokens.get_mut(&id).filter(|token| token.hash == *hash);
        let Some(token) = good else {
            return Err(forbidden(
                "this token lets nobody in (any more): it was used up or revoked, its time is over, or it is another \
                 pool's; an admin makes a new one with `cheetah token new`",
            ));
        };
        if !is_key(&key) {
            return Err(refuse(RefusalCode::Invalid, "the public key is no uncompressed point of P-256"));
        }
        if self.members.members.len() >= POOL_MEMBERS_MAX {
            let message = format!("the pool is at its limit of {POOL_MEMBERS_MAX} members: revoke some");
            return Err(refuse(RefusalCode::Unavailable, message));
        }
        let role = token.role;
        token.used += 1;
        token.uses_left = token.uses_left.map(|left| left.saturating_sub(1));
        if token.uses_left == Some(0) {
            self.members.tokens.remove(&id);
        }
        let taken = |number| self.members.members.contains_key(&MemberId(number));
        let member = MemberId(seed.draw_free(taken));
        let (joined, certified) = (self.time_of_day, self.time_of_day);
        let name = harmless(&name, MEMBER_NAME_BYTES_MAX);
        let text = format!("{role} {member} came in as {name} by token {id}");
        let record = MemberRecord { member, role, name, token: Some(id), joined, certified, key };
        self.members.members.insert(member, record);
        self.dirty.extend([Key::Token(id), Key::Member(member)]);
        self.note(Note { event: "member-joined", text, ..Note::default() });
        Ok(Outcome::Answer(self.enrolled(Member { id: member, role })))
    }

    fn enrolled(&self, member: Member) -> Answer {
        let (certificate, authority, lasts) = (String::new(), String::new(), 0);
        let Member { id, role } = member;
        Answer::Enrolled(Enrolled { pool: self.pool, member: id, role, certificate, authority, lasts })
    }

    pub(super) fn recertify(&mut self, recertify: &Recertify) -> Result<Outcome, Refusal> {
        let (Some(member), now) = (self.caller.member(), self.time_of_day) else {
            return Err(forbidden("who is no member has no certificate to renew"));
        };
        if !is_key(&recertify.key) {
            return Err(refuse(RefusalCode::Invalid, "the public key is no uncompressed point of P-256"));
        }
        if let Some(record) = self.members.members.get_mut(&member.id) {
            record.certified = now;
            record.key.clone_from(&recertify.key);
            self.dirty.insert(Key::Member(member.id));
        }
        Ok(Outcome::Answer(self.enrolled(member)))
    }

    pub(super) fn list_members(&self) -> Outcome {
        let members = self.members.members.values().map(MemberRecord::status);
        Outcome::Answer(Answer::Members(members.collect()))
    }

    pub(super) fn show_member(&self, id: MemberId) -> Result<Outcome, Refusal> {
        match self.members.members.get(&id) {
            Some(record) => Ok(Outcome::Answer(Answer::Member(Box::new(record.status())))),
            None => Err(no_such_member(id)),
        }
    }

    /// It is out at once, with all that is its own. The last admin stays: nobody could let in another.
    pub(super) fn revoke_member(&mut self, now: Time, id: MemberId) -> Result<Outcome, Refusal> {
        let mut admins = self.members.members.values().filter(|member| member.role == Role::Admin);
        if admins.next().is_some_and(|only| only.member == id) && admins.next().is_none() {
            let message = format!(
                "{id} is the only admin of this pool: let in another first (`cheetah token new --role admin`)"
            );
            return Err(refuse(RefusalCode::Conflict, message));
        }
        let Some(record) = self.members.members.remove(&id) else {
            return Err(no_such_member(id));
        };
        self.dirty.insert(Key::Member(id));
        self.forget_keys_of(id);
        let own = |member: Option<MemberId>| member == Some(id);
        let leases = self.leases.iter().filter(|(_, lease)| own(lease.record.member));
        let leases: Vec<LeaseToken> = leases.map(|(token, _)| *token).collect();
        leases.into_iter().for_each(|token| self.lease_expired(token));
        let donors = self.donors.iter().filter(|(_, donor)| own(donor.record.member));
        let donors: Vec<DonorId> = donors.map(|(donor, _)| *donor).collect();
        donors.into_iter().for_each(|donor| self.dismiss(now, donor));
        let text = format!("{} {id} ({}) was revoked", record.role, record.name);
        self.note(Note { event: "member-revoked", text, ..Note::default() });
        Ok(Outcome::Answer(Answer::Done))
    }
}

pub(super) fn no_such_member(id: MemberId) -> Refusal {
    let message = format!("there is no member {id}; `cheetah member list` shows those there are");
    refuse(RefusalCode::NotFound, message)
}

impl MemberRecord {
    fn status(&self) -> MemberStatus {
        let MemberRecord { member, role, name, token, joined, certified, key } = self.clone();
        MemberStatus { member, role, name, token, joined, certified, key }
    }
}

impl TokenRecord {
    fn status(&self) -> TokenStatus {
        let TokenRecord { hash, role, uses_left, used, expires } = self;
        let (token, role) = (hash.id(), *role);
        TokenStatus { token, role, uses_left: *uses_left, used: *used, expires: *expires }
    }
}
