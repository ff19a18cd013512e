//! The coordinator's records in etcd, for as long as a term lasts.
//!
//! Owns the keys under the prefix: `records/KEY#PART` (a record is cut into parts of `ETCD_PART_BYTES_MAX`),
//! `commit` (who committed last, and how often), `made` (that there are records) and the journal. Never: who
//! leads (`term`), or what records mean. Key invariants: every write is guarded by the leader's key *and* by
//! the commit before it, so that it is done once at most, in order, and never by a coordinator that was
//! deposed; and a commit is done whole or not at all. One that fits one transaction is that transaction. A
//! larger one is first written to the journal; from the moment `journal-complete` is there it counts, and
//! whoever leads next carries it out before it reads anything. A journal without that key never happened.
//! Tests: below, and `lab/tests/etcd.rs`.

use super::etcd::{EtcdError, Found, If, Op};
use super::store::StoreError;
use super::term::Term;
use cheetah_core::coordinator::{Effect, Record};
use cheetah_core::limits::{ETCD_PART_BYTES_MAX, ETCD_TXN_BYTES_MAX, ETCD_TXN_OPS_MAX};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Mutex;

const RECORDS: &str = "records/";
const JOURNAL: &str = "journal";
const COMPLETE: &str = "journal-complete";
/// There once that a pool was stored.
const MADE: &str = "made";

/// What becomes of each record: its JSON, or nothing.
type Changes = BTreeMap<String, Option<String>>;

#[derive(Debug)]
pub(super) struct EtcdStore {
    term: Arc<Term>,
    last: Mutex<Last>,
    /// There was a commit with records: without any, they were lost.
    made: AtomicBool,
}

/// The commit before the next one.
#[derive(Debug)]
struct Last {
    /// As the key `commit` has it; `None` before the first of all.
    value: Option<String>,
    number: u64,
}

impl From<EtcdError> for StoreError {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::Unreachable(why) => StoreError::Deposed(format!("etcd cannot be reached: {why}")),
            EtcdError::Refused(why) => {
                let next = remedy(&why);
                StoreError::Failed(format!("etcd refuses: {why}{next}"))
            }
        }
    }
}

/// What to do about a refusal of etcd, where that can be known.
fn remedy(why: &str) -> &'static str {
    if why.contains("space exceeded") {
        "; compact and defragment it and disarm its alarm, and run it with --auto-compaction-retention=1"
    } else if why.contains("too large") || why.contains("too many operations") {
        "; run it with --max-request-bytes and --max-txn-ops no lower than their defaults, 1572864 and 128"
    } else {
        ""
    }
}

fn failed(error: impl std::fmt::Display) -> StoreError {
    StoreError::Failed(error.to_string())
}

impl EtcdStore {
    /// Shuts out every earlier leader, and carries out what the last one had promised.
    pub(super) async fn open(term: Arc<Term>) -> Result<Self, StoreError> {
        let etcd = term.etcd();
        let commit = etcd.get(&etcd.key("commit"), term.deadline()).await?;
        let value = commit.map(|found| text(found.value)).transpose()?;
        let made = etcd.get(&etcd.key(MADE), term.deadline()).await?.is_some();
        let (last, made) = (Mutex::new(Last { value, number: 0 }), AtomicBool::new(made));
        let store = EtcdStore { term: Arc::clone(&term), last, made };
        // From here on no transaction of an earlier leader can be carried out, however late it arrives.
        store.guarded(Vec::new()).await?;
        if let Some(journal) = store.journal().await? {
            store.carry_out(&journal).await?;
        }
        store.guarded(vec![store.no_journal(), store.incomplete()]).await?;
        Ok(store)
    }

    pub(super) fn term(&self) -> &Arc<Term> {
        &self.term
    }

    /// `None` where nobody has committed anything yet.
    pub(super) async fn load(&self) -> Result<Option<Vec<Record>>, StoreError> {
        let records = self.values(RECORDS).await?;
        if records.is_empty() {
            return match self.made.load(Ordering::Relaxed) {
                false => Ok(None),
                true => Err(failed(format!(
                    "{} had a pool, and its records are gone: restore them, or start a new pool with another prefix",
                    self.term.etcd().at()
                ))),
            };
        }
        let unreadable =
            |key: &str, error| failed(format!("{}: record {key}: {error}", self.term.etcd().at()));
        let records = records.iter();
        records
            .map(|(key, value)| serde_json::from_str(value).map_err(|error| unreadable(key, error)))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Carries out the `Store` and `Forget` among the effects: all of it, or nothing.
    pub(super) async fn commit(&self, effects: &[Effect]) -> Result<(), StoreError> {
        self.commit_changes(effects).await?;
        if !self.made.swap(true, Ordering::Relaxed) {
            let made = self.term.etcd().key(MADE);
            self.guarded(vec![Op::Put(made, b"yes".to_vec(), 0)]).await?;
        }
        Ok(())
    }

    async fn commit_changes(&self, effects: &[Effect]) -> Result<(), StoreError> {
        let changes = changes(effects)?;
        let mut steps = self.steps(&changes);
        if let (Some(only), true) = (steps.pop(), steps.is_empty()) {
            return self.guarded(only).await;
        }
        let journal = serde_json::to_string(&changes).map_err(failed)?;
        let parts = parts(&self.term.etcd().key(JOURNAL), &journal);
        for step in pack(parts) {
            self.guarded(step).await?;
        }
        let complete = self.term.etcd().key(COMPLETE);
        self.guarded(vec![Op::Put(complete, b"yes".to_vec(), 0)]).await?;
        self.carry_out(&changes).await?;
        self.guarded(vec![self.no_journal(), self.incomplete()]).await
    }

    async fn carry_out(&self, changes: &Changes) -> Result<(), StoreError> {
        for step in self.steps(changes) {
            self.guarded(step).await?;
        }
        Ok(())
    }

    /// The transactions that make these changes.
    fn steps(&self, changes: &Changes) -> Vec<Vec<Op>> {
        let records = self.term.etcd().key(RECORDS);
        let ops = changes.iter().flat_map(|(key, value)| {
            let key = format!("{records}{key}");
            match value {
                Some(value) => parts(&key, value),
                None => vec![Op::Delete(format!("{key}#"), format!("{key}$"))],
            }
        });
        pack(ops)
    }

    async fn journal(&self) -> Result<Option<Changes>, StoreError> {
        let etcd = self.term.etcd();
        if etcd.get(&etcd.key(COMPLETE), self.term.deadline()).await?.is_none() {
            return Ok(None);
        }
        let journal = self.values(JOURNAL).await?.remove("");
        let journal = journal.ok_or_else(|| failed("the journal is complete, but not there"))?;
        serde_json::from_str(&journal).map(Some).map_err(failed)
    }

    fn no_journal(&self) -> Op {
        let key = self.term.etcd().key(JOURNAL);
        Op::Delete(format!("{key}#"), format!("{key}$"))
    }

    fn incomplete(&self) -> Op {
        let key = self.term.etcd().key(COMPLETE);
        let after = format!("{key}\0");
        Op::Delete(key, after)
    }

    /// What is stored in parts under names that begin so.
    async fn values(&self, prefix: &str) -> Result<BTreeMap<String, String>, StoreError> {
        let etcd = self.term.etcd();
        let prefix = etcd.key(prefix);
        // The journal's parts are `journal#...`, and `journal-complete` comes after them.
        let to = if prefix.ends_with('/') { after(&prefix) } else { format!("{prefix}$") };
        join(&prefix, etcd.range(&prefix, &to, || self.term.deadline()).await?)
    }

    /// One transaction of this term, done exactly once when this says so.
    async fn guarded(&self, mut ops: Vec<Op>) -> Result<(), StoreError> {
        let mut last = self.last.lock().await;
        self.term.check()?;
        let etcd = self.term.etcd();
        let (leader, commit) = (etcd.key("leader"), etcd.key("commit"));
        let value = format!("{}.{}", self.term.created(), last.number + 1);
        let before = match &last.value {
            Some(value) => If::Holds(commit.clone(), value.clone()),
            None => If::Absent(commit.clone()),
        };
        ops.push(Op::Put(commit.clone(), value.clone().into_bytes(), 0));
        let look = [Op::Get(leader.clone()), Op::Get(commit.clone())];
        let done = etcd.transact(&[self.term.guard(), before], &ops, &look, self.term.deadline()).await?;
        let found = |key: &str| done.found.iter().find(|found| found.key == key);
        if !done.succeeded {
            if found(&leader).is_none_or(|leader| leader.created != self.term.created()) {
                return Err(StoreError::Deposed("another leads".to_owned()));
            }
            // Unless an earlier try of this very transaction was carried out unheard.
            if found(&commit).is_none_or(|commit| commit.value != value.as_bytes()) {
                let at = etcd.at();
                return Err(failed(format!("something that is not a coordinator writes in {at}")));
            }
        }
        *last = Last { value: Some(value), number: last.number + 1 };
        Ok(())
    }
}

fn text(value: Vec<u8>) -> Result<String, StoreError> {
    String::from_utf8(value).map_err(failed)
}

/// The last change of each record wins: etcd takes a key once per transaction.
fn changes(effects: &[Effect]) -> Result<Changes, StoreError> {
    let mut changes = Changes::new();
    for effect in effects {
        match effect {
            Effect::Store(record) => {
                let value = serde_json::to_string(record).map_err(failed)?;
                changes.insert(record.key().to_string(), Some(value));
            }
            Effect::Forget(key) => {
                changes.insert(key.to_string(), None);
            }
            Effect::Reply { .. }
            | Effect::Greet { .. }
            | Effect::Reach { .. }
            | Effect::WakeAt(_)
            | Effect::Note(_) => {}
        }
    }
    Ok(changes)
}

/// The end of a range of all keys that begin so.
fn after(prefix: &str) -> String {
    // '0' follows '/'.
    format!("{}0", prefix.trim_end_matches('/'))
}

/// What one part takes: never half of a character.
fn head_bytes(text: &str) -> usize {
    let mut bytes = text.len().min(ETCD_PART_BYTES_MAX);
    while !text.is_char_boundary(bytes) {
        bytes -= 1;
    }
    bytes
}

/// Puts a value, and takes away what a longer one has left.
fn parts(key: &str, value: &str) -> Vec<Op> {
    let part = |number: usize| format!("{key}#{number:06}");
    let mut ops = Vec::new();
    let mut rest = value;
    while ops.is_empty() || !rest.is_empty() {
        let (head, tail) = rest.split_at(head_bytes(rest));
        ops.push(Op::Put(part(ops.len()), head.as_bytes().to_vec(), 0));
        rest = tail;
    }
    ops.push(Op::Delete(part(ops.len()), format!("{key}$")));
    ops
}

/// The values of keys in parts, without what all keys begin with.
fn join(prefix: &str, found: Vec<Found>) -> Result<BTreeMap<String, String>, StoreError> {
    let mut values: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for Found { key, value, .. } in found {
        let name = key.strip_prefix(prefix).and_then(|rest| rest.rsplit_once('#'));
        let (name, _) = name.ok_or_else(|| failed(format!("the key {key} is not a coordinator's")))?;
        values.entry(name.to_owned()).or_default().extend(value);
    }
    values.into_iter().map(|(name, value)| Ok((name, text(value)?))).collect()
}

/// As few transactions as etcd's limits allow, in order.
fn pack(ops: impl IntoIterator<Item = Op>) -> Vec<Vec<Op>> {
    let mut steps: Vec<Vec<Op>> = Vec::new();
    let mut bytes = 0;
    for op in ops {
        bytes += op.bytes();
        match steps.last_mut() {
            Some(step) if step.len() < ETCD_TXN_OPS_MAX && bytes <= ETCD_TXN_BYTES_MAX => step.push(op),
            _ => {
                bytes = op.bytes();
                steps.push(vec![op]);
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_of(op: &Op) -> Option<Found> {
        match op {
            Op::Put(key, value, _) => {
                Some(Found { key: key.clone(), value: value.clone(), created: 1, lease: 0 })
            }
            _ => None,
        }
    }

    #[test]
    fn a_value_comes_back_from_its_parts() {
        for length in [0, 1, ETCD_PART_BYTES_MAX - 1, ETCD_PART_BYTES_MAX, 3 * ETCD_PART_BYTES_MAX + 7] {
            // Two bytes each: no part may end within one.
            let value = "ä".repeat(length / 2);
            let ops = parts("/p/records/volume/1", &value);
            let puts: Vec<Found> = ops.iter().filter_map(put_of).collect();
            assert!(puts.iter().all(|put| put.value.len() <= ETCD_PART_BYTES_MAX));
            let next = format!("/p/records/volume/1#{:06}", puts.len());
            assert_eq!(ops.last(), Some(&Op::Delete(next, "/p/records/volume/1$".into())));
            let joined = join("/p/records/", puts).expect("readable");
            assert_eq!(joined, BTreeMap::from([("volume/1".to_owned(), value)]));
        }
    }

    #[test]
    fn transactions_keep_to_the_limits_and_lose_nothing() {
        let ops: Vec<Op> = (0..1000).map(|n| Op::Put(format!("{n}"), vec![0; n * 97], 0)).collect();
        let steps = pack(ops.clone());
        for step in &steps {
            assert!(step.len() <= ETCD_TXN_OPS_MAX);
            assert!(step.iter().map(Op::bytes).sum::<usize>() <= ETCD_TXN_BYTES_MAX);
        }
        assert_eq!(steps.concat(), ops);
        assert_eq!(pack(Vec::new()), Vec::<Vec<Op>>::new());
    }
}
