//! The links to donors: the connections of each, how they are made and given up, and which of them a part
//! goes over.
//!
//! Never: when a link is opened or closed, which the machine says; or a connection's bytes (`conn`).
//! Invariant: a link that was closed has no connection, and nothing that ends later is taken for its own.

use super::Driver;
use super::conn::{self, Conn, Part};
use super::open::{self, Opened, probe};
use cheetah_core::limits::BLOCK_BYTES;
use cheetah_core::map::{DonorId, Route};
use cheetah_core::volume::{self as machine, Event, LinkFailure};
use cheetah_nbd::Digest;
use cheetah_terms::client::payload_bytes;
use std::cell::RefCell;
use std::rc::Rc;

/// A connection with at least this much on its way is passed over for an emptier one.
const CONN_BUSY_BYTES: u64 = 256 << 10;

#[derive(Default)]
pub(super) struct Link {
    session: u64,
    pub(super) conns: Vec<Rc<Conn>>,
    opening: Option<tokio::task::AbortHandle>,
    probing: Option<tokio::task::AbortHandle>,
    /// That its donor keeps no checksums was said.
    warned: bool,
}

impl Driver {
    pub(super) fn send(&mut self, donor: DonorId, mut part: Part) {
        let link = self.links.get_mut(&donor).expect("sent over links that are up");
        let idle = link.conns.iter().find(|conn| conn.outstanding() < CONN_BUSY_BYTES);
        let conn = idle.or_else(|| link.conns.iter().min_by_key(|conn| conn.outstanding()));
        let conn = conn.expect("a link that is up has connections").clone();
        let can = conn.can();
        if let Some(answer) = can.answer_without(part.op) {
            return self.answered_here.push(Event::Answered { part: part.part, answer });
        }
        part.op = can.sparing(part.op, || self.memory.is_zero(part.mem, part.scatter));
        let says_what_it_is = can.is_sealed() && payload_bytes(part.op, part.scatter.len) > 0;
        if says_what_it_is {
            self.learn();
        }
        let digest = says_what_it_is.then(|| {
            let sums = self.memory.sums_of(part.fragment, part.mem, part.scatter);
            Digest { sums: Digest::of_blocks(part.address / BLOCK_BYTES, sums) }
        });
        let auth = match can.has_auth() && payload_bytes(part.op, part.scatter.len) > 0 {
            true => self.memory.auths_of(part.fragment, part.mem, part.scatter),
            false => Vec::new(),
        };
        if conn.queue(&part, digest, auth) {
            self.to_flush.push(conn);
        }
    }

    pub(super) fn open(&mut self, donor: DonorId, session: u64) {
        let (route, export) = self.address(donor, session);
        let (given, map) = (self.connections, self.machine.map());
        // One group at a time is what most tools are at.
        let donors = map.routes.len().min(map.redundancy.width() as usize);
        let connections = move |round_trip| given.unwrap_or_else(|| machine::connections(donors, round_trip));
        let needs = open::Needs { writable: !self.shared.read_only, auth: map.encrypted };
        let (this, transport) = (self.this.clone(), self.transport.clone());
        let task = tokio::task::spawn_local(async move {
            let opened = open::open_link(&route, &export, &transport, connections, needs).await;
            if let Some(driver) = this.upgrade() {
                Driver::link_opened(&driver, donor, session, opened);
            }
        });
        let link = self.links.entry(donor).or_default();
        link.session = session;
        link.opening = Some(task.abort_handle());
    }

    fn address(&self, donor: DonorId, session: u64) -> (Route, String) {
        let route = self.machine.map().routes[&donor].clone();
        let export = route.foreign_export.clone().unwrap_or_else(|| {
            cheetah_core::donor::export_name(&self.machine.map().name, self.token, session, donor)
        });
        (route, export)
    }

    pub(super) fn probe(&mut self, donor: DonorId, session: u64) {
        let (route, export) = self.address(donor, session);
        let (this, transport) = (self.this.clone(), self.transport.clone());
        let task = tokio::task::spawn_local(async move {
            let Ok(endpoint) = route.address.parse() else { return };
            if probe(endpoint, export, &transport).await.is_err() {
                return;
            }
            let Some(driver) = this.upgrade() else { return };
            let mut driver = driver.borrow_mut();
            if driver.links.get(&donor).is_some_and(|link| link.conns.iter().any(|conn| conn.hangs())) {
                driver.event(Event::Reached { donor, session });
            }
        });
        if let Some(earlier) = self.links.entry(donor).or_default().probing.replace(task.abort_handle()) {
            earlier.abort();
        }
    }

    fn link_opened(
        driver: &Rc<RefCell<Driver>>,
        donor: DonorId,
        session: u64,
        opened: Result<Vec<Opened>, LinkFailure>,
    ) {
        let mut this = driver.borrow_mut();
        let traffic = this.traffic.clone();
        let Some(link) = this.links.get_mut(&donor).filter(|link| link.session == session) else { return };
        link.opening = None;
        match opened {
            Ok(opened) => {
                for connection in opened {
                    let conn = Rc::new(Conn::new(donor, session, connection, traffic.clone()));
                    tokio::task::spawn_local(conn::receive_all(driver.clone(), conn.clone()));
                    tokio::task::spawn_local(conn::send_all(driver.clone(), conn.clone()));
                    link.conns.push(conn);
                }
                this.warn_of_foreign(donor);
                this.event(Event::Opened { donor, session });
            }
            Err(failure) => this.event(Event::Failed { donor, session, failure }),
        }
    }

    /// Once for each: nobody else than who wrote it can say of a block there that it is wrong, but where the
    /// volume is sealed.
    fn warn_of_foreign(&mut self, donor: DonorId) {
        let map = self.machine.map();
        let Some(route) = map.routes.get(&donor).filter(|route| route.foreign_export.is_some()) else {
            return;
        };
        let so = match map.proofs.as_ref().is_some_and(|proofs| proofs.root.is_some()) {
            true => "what it gives is compared with the seal",
            false if self.shared.read_only => "what it gives is taken as it comes",
            false => "what it gives is compared with what was written from here, and else taken as it comes",
        };
        let name = &route.name;
        let link = self.links.get_mut(&donor).expect("it was opened");
        if !std::mem::replace(&mut link.warned, true) {
            tracing::warn!("donor {name} is another NBD server, which keeps no checksums: {so}");
        }
    }

    /// After this no connection of the link touches a payload: each is marked, and looks before it does. Nor
    /// does the kernel: what it was lent is its own now.
    pub(super) fn close(&mut self, donor: DonorId) {
        self.forget_waiting(|from, _| from == donor);
        let Some(link) = self.links.get_mut(&donor) else { return };
        for task in link.opening.take().into_iter().chain(link.probing.take()) {
            task.abort();
        }
        for conn in link.conns.drain(..) {
            conn.close(&mut self.memory);
        }
    }

    /// A connection broke, or its peer broke the protocol.
    pub(super) fn broken(&mut self, donor: DonorId, session: u64, why: String) {
        if self.links.get(&donor).is_some_and(|link| link.session == session && !link.conns.is_empty()) {
            self.event(Event::Failed { donor, session, failure: LinkFailure::Broken(why) });
        }
    }

    /// The polite end: every connection says DISC.
    pub(super) fn hang_up(&mut self) {
        let donors: Vec<DonorId> = self.links.keys().copied().collect();
        for donor in donors {
            for conn in &self.links[&donor].conns {
                conn.disconnect();
            }
            self.close(donor);
        }
    }
}
