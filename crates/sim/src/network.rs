//! Connections between clients and donors, and what is in their sockets.
//!
//! Owns: delays, order within a connection (and none between two), cuts that nobody is told of, and the
//! honest part: what was put into a socket may still arrive after its sender closed it, gave up or died.
//! Never: what messages mean (`serving`, `parts`). Invariant: each message has one arrival event; the event
//! takes whatever is at the front of the queue then.

use crate::wire::{ClientEnd, DonorEnd};
use crate::world::{ClientEv, Ev, World};
use cheetah_core::donor::WriteMark;
use cheetah_core::layout::Scatter;
use cheetah_core::limits::{MILLISECOND_NS, SECOND_NS};
use cheetah_core::map::DonorId;
use cheetah_core::units::Time;
use cheetah_core::volume::{Fragment, Mem, PartOp};
use cheetah_nbd::client;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    Coordinator,
    /// An address that donors, one after the other, listen at.
    Donor(usize),
    Client(usize),
}

/// What a client waits for, and where it belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    pub(crate) op: PartOp,
    pub(crate) mem: Mem,
    pub(crate) scatter: Scatter,
    pub(crate) fragment: Fragment,
    pub(crate) mark: Option<WriteMark>,
}

#[derive(Clone, Debug)]
pub(crate) enum ToDonor {
    Hello,
    Bytes(Vec<u8>),
    End,
}

#[derive(Clone, Debug)]
pub(crate) enum ToClient {
    Welcome,
    Refused(client::Error),
    Bytes(Vec<u8>),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No donor has seen it yet.
    Connecting,
    /// The donor machine decides.
    Asking,
    Serving,
    Ended,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) client: usize,
    pub(crate) link: DonorId,
    pub(crate) session: u64,
    pub(crate) slot: usize,
    /// The donor process that took it.
    pub(crate) donor: Option<usize>,
    pub(crate) export: String,
    pub(crate) stage: Stage,
    pub(crate) client_open: bool,
    pub(crate) client_ended: bool,
    pub(crate) grant: Option<cheetah_core::donor::Grant>,
    to_donor: VecDeque<ToDonor>,
    to_client: VecDeque<ToClient>,
    last_to_donor: Time,
    last_to_client: Time,
    stalled_until: Time,
    /// Lost on the way: what is sent from now on goes nowhere.
    lost: bool,
    pub(crate) inbox: VecDeque<ToDonor>,
    pub(crate) serving: bool,
    pub(crate) donor_end: Option<DonorEnd>,
    pub(crate) client_end: Option<ClientEnd>,
}

#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    cuts: BTreeMap<(Node, Node), Time>,
}

impl World {
    pub(crate) fn delay(&mut self) -> u64 {
        self.plan.delay_ns + self.rng.below(self.plan.jitter_ns + 1)
    }

    /// Nothing gets from one to the other until then; the other way may still work.
    pub(crate) fn cut(&mut self, from: Node, to: Node, until: Time) {
        let end = self.network.cuts.entry((from, to)).or_default();
        *end = (*end).max(until);
    }

    pub(crate) fn heal_cuts(&mut self) {
        self.network.cuts.values_mut().for_each(|until| *until = 0);
    }

    /// When the link works again, if it does not now.
    pub(crate) fn cut_until(&self, from: Node, to: Node) -> Option<Time> {
        self.network.cuts.get(&(from, to)).copied().filter(|until| *until > self.now)
    }

    pub(crate) fn connect(
        &mut self,
        client: usize,
        link: DonorId,
        session: u64,
        slot: usize,
        export: String,
    ) -> u64 {
        self.network.next_conn += 1;
        let id = self.network.next_conn;
        let conn = Conn {
            client,
            link,
            session,
            slot,
            donor: None,
            export,
            stage: Stage::Connecting,
            client_open: true,
            client_ended: false,
            grant: None,
            to_donor: VecDeque::new(),
            to_client: VecDeque::new(),
            last_to_donor: self.now,
            last_to_client: self.now,
            stalled_until: 0,
            lost: false,
            inbox: VecDeque::new(),
            serving: false,
            donor_end: None,
            client_end: None,
        };
        self.network.conns.insert(id, conn);
        // One way for the connection itself.
        let reach = self.delay() + self.delay();
        self.network.conns.entry(id).and_modify(|conn| conn.last_to_donor += reach);
        self.send_to_donor(id, ToDonor::Hello);
        id
    }

    pub(crate) fn send_to_donor(&mut self, id: u64, message: ToDonor) {
        let delay = self.delay();
        let now = self.now;
        let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| !conn.lost) else { return };
        conn.last_to_donor = conn.last_to_donor.max(now + delay);
        conn.to_donor.push_back(message);
        let at = conn.last_to_donor;
        self.at(at, Ev::ToDonor(id));
    }

    pub(crate) fn send_to_client(&mut self, id: u64, message: ToClient) {
        let delay = self.delay();
        let now = self.now;
        let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| !conn.lost) else { return };
        conn.last_to_client = conn.last_to_client.max(now + delay);
        conn.to_client.push_back(message);
        let at = conn.last_to_client;
        self.at(at, Ev::ToClient(id));
    }

    /// What is on its way keeps being held up until the link works: nothing is lost, it is sent again.
    fn held_up(&mut self, id: u64, up: bool, event: fn(u64) -> Ev) -> bool {
        let Some(conn) = self.network.conns.get(&id) else { return true };
        let (client, donor) = (Node::Client(conn.client), Node::Donor(conn.slot));
        let (from, to) = if up { (client, donor) } else { (donor, client) };
        let Some(until) = self.cut_until(from, to) else { return false };
        let again = self.rng.below(200 * MILLISECOND_NS);
        self.at(until + again, event(id));
        true
    }

    pub(crate) fn arrive_at_donor(&mut self, id: u64) {
        if self.held_up(id, true, Ev::ToDonor) {
            return;
        }
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        if conn.stalled_until > self.now {
            let until = conn.stalled_until;
            return self.at(until, Ev::ToDonor(id));
        }
        let Some(message) = conn.to_donor.pop_front() else { return };
        if conn.stage == Stage::Connecting {
            let (slot, client) = (conn.slot, conn.client);
            match self.listener(slot) {
                Some(donor) => {
                    if let Some(conn) = self.network.conns.get_mut(&id) {
                        (conn.donor, conn.stage) = (Some(donor), Stage::Asking);
                    }
                }
                None => {
                    // Nobody listens; a host that is gone does not even say so.
                    self.drop_conn(id);
                    if !self.director.dark.contains(&slot) {
                        let delay = self.delay();
                        self.after(delay, Ev::Client(client, ClientEv::Refused(id)));
                    }
                    return;
                }
            }
        }
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        if conn.stage == Stage::Ended {
            if matches!(message, ToDonor::Bytes(_)) {
                self.count("bytes that came late on an old connection");
            }
            return;
        }
        conn.inbox.push_back(message);
        self.serve_soon(id);
    }

    pub(crate) fn arrive_at_client(&mut self, id: u64) {
        if self.held_up(id, false, Ev::ToClient) {
            return;
        }
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        let client = conn.client;
        let pause = self.clients[client].paused_until;
        if pause > self.now {
            return self.at(pause, Ev::ToClient(id));
        }
        let Some(message) = conn.to_client.pop_front() else { return };
        if conn.client_open && self.clients[client].alive {
            self.client_receives(client, id, message);
        }
    }

    /// The client closes its end: what it sent before is still delivered, then the end of it.
    pub(crate) fn close_by_client(&mut self, id: u64) {
        let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| conn.client_open) else { return };
        conn.client_open = false;
        conn.client_end = None;
        self.send_to_donor(id, ToDonor::End);
    }

    /// The connection is lost on the way: a part of what is on its way arrives, then (perhaps) the end.
    pub(crate) fn lose_conn(&mut self, id: u64, client_hears: bool, donor_hears: bool) {
        let (keep_up, keep_down) = (self.rng.below(101), self.rng.below(101));
        let Some(conn) = self.network.conns.get(&id).filter(|conn| !conn.lost) else { return };
        let (client, link) = (conn.client, conn.link);
        if !self.clients[client].is_up(link) {
            // Lost while it is made: the machine takes that for a donor that cannot be reached.
            self.verdict.link_in_trouble(client, link, self.now + SECOND_NS);
        }
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        let part = |len: usize, percent: u64| len * usize::try_from(percent).expect("a percentage") / 100;
        conn.to_donor.truncate(part(conn.to_donor.len(), keep_up));
        conn.to_client.truncate(part(conn.to_client.len(), keep_down));
        if donor_hears {
            self.send_to_donor(id, ToDonor::End);
        }
        if client_hears {
            self.send_to_client(id, ToClient::End);
        }
        self.network.conns.entry(id).and_modify(|conn| conn.lost = true);
    }

    /// Everything on its way to the donor on this connection arrives later, and what follows it too.
    pub(crate) fn stall_conn(&mut self, id: u64, by: u64) {
        let until = self.now + by;
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        conn.stalled_until = conn.stalled_until.max(until);
        let (client, link) = (conn.client, conn.link);
        self.verdict.link_is_slow(client, link, self.now, until);
    }

    /// What is sent to the donor from now on arrives later by this.
    pub(crate) fn slow_down(&mut self, id: u64, by: u64) {
        let now = self.now;
        if let Some(conn) = self.network.conns.get_mut(&id) {
            conn.last_to_donor = conn.last_to_donor.max(now) + by;
        }
    }

    /// Nothing of it matters to anyone any more.
    pub(crate) fn drop_conn(&mut self, id: u64) {
        let Some(conn) = self.network.conns.get_mut(&id) else { return };
        conn.stage = Stage::Ended;
        conn.inbox.clear();
        conn.donor_end = None;
    }

    pub(crate) fn conns_where(&self, wanted: impl Fn(&Conn) -> bool) -> Vec<u64> {
        self.network.conns.iter().filter(|(_, conn)| wanted(conn)).map(|(id, _)| *id).collect()
    }
}
