//! A client's links to donors, as `rim::volume` has them: connections that are opened one after the other,
//! asked whether their donor is there, and closed.
//!
//! Never: decisions, or what goes over a connection (`parts`). Key rule: after `Close` nothing that arrives
//! on the link's old connections is looked at.

use crate::client::Client;
use crate::network::{ToClient, ToDonor};
use crate::wire::ClientEnd;
use crate::world::{World, say};
use cheetah_core::donor::export_name;
use cheetah_core::map::DonorId;
use cheetah_core::volume::{Event, LinkFailure};
use cheetah_terms::client::{first_words, link_failure};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct LinkEnd {
    pub(crate) session: u64,
    conns: Vec<u64>,
    /// The connection that is being made.
    opening: Option<u64>,
    probe: Option<u64>,
    up: bool,
}

impl Client {
    /// The connections of a link that is up.
    pub(crate) fn conns_of(&self, donor: DonorId) -> Option<Vec<u64>> {
        self.links.get(&donor).filter(|link| link.up).map(|link| link.conns.clone())
    }

    /// Whether the link to the donor is up, as far as the driver knows.
    pub(crate) fn is_up(&self, donor: DonorId) -> bool {
        self.links.get(&donor).is_some_and(|link| link.up)
    }
}

impl World {
    pub(crate) fn open_one(&mut self, c: usize, donor: DonorId) {
        let session = self.clients[c].links[&donor].session;
        if let Some(conn) = self.connect_to(c, donor, session) {
            self.clients[c].links.entry(donor).or_default().opening = Some(conn);
        }
    }

    fn connect_to(&mut self, c: usize, donor: DonorId, session: u64) -> Option<u64> {
        let client = &self.clients[c];
        let (machine, token) = (client.machine.as_ref()?, client.token?);
        let slot = crate::director::slot_of(&machine.map().routes.get(&donor)?.address);
        let export = export_name(&client.name, token, session, donor);
        Some(self.connect(c, donor, session, slot, export))
    }

    /// A connection for nothing but to hear whether the donor is there.
    pub(crate) fn probe(&mut self, c: usize, donor: DonorId, session: u64) {
        self.count("donors asked whether they are there");
        let probe = self.connect_to(c, donor, session);
        let link = self.clients[c].links.entry(donor).or_default();
        if let Some(earlier) = std::mem::replace(&mut link.probe, probe) {
            self.close_by_client(earlier);
        }
    }

    pub(crate) fn close_link(&mut self, c: usize, donor: DonorId) {
        let Some(link) = self.clients[c].links.get_mut(&donor) else { return };
        link.up = false;
        let conns: Vec<u64> =
            link.conns.drain(..).chain(link.opening.take()).chain(link.probe.take()).collect();
        for id in conns {
            let client = &mut self.clients[c];
            let sent = std::mem::take(&mut client.sent);
            let (over_it, others) = sent.into_iter().partition(|(_, conn)| *conn == id);
            client.sent = others;
            let over_it: BTreeMap<u64, u64> = over_it;
            over_it.keys().for_each(|part| client.memory.end_part(*part));
            self.close_by_client(id);
        }
    }

    pub(crate) fn client_receives(&mut self, c: usize, id: u64, message: ToClient) {
        match message {
            ToClient::Welcome => self.conn_opened(c, id),
            ToClient::Refused(error) => {
                let Some(link) = self.network.conns.get(&id).map(|conn| conn.link) else { return };
                self.conn_failed(c, id, link_failure(&error, link));
            }
            ToClient::End => {
                self.conn_failed(c, id, LinkFailure::NotOpened("it closed the connection".into()));
            }
            ToClient::Bytes(bytes) => self.answers_arrive(c, id, &bytes),
        }
    }

    fn conn_opened(&mut self, c: usize, id: u64) {
        let Some(conn) = self.network.conns.get(&id) else { return };
        let (donor, session) = (conn.link, conn.session);
        // Its welcome said what it may do.
        let Some(grant) = conn.grant else { return };
        let wanted = self.plan.connections;
        if self.ends_probe(c, id) {
            self.close_by_client(id);
            self.step_client(c, Event::Reached { donor, session });
            if self.clients[c].links[&donor].session > session {
                self.count("links opened anew beside a connection that hung");
            }
            return;
        }
        let Some(link) = self.clients[c].links.get_mut(&donor).filter(|link| link.opening == Some(id)) else {
            return;
        };
        link.opening = None;
        link.conns.push(id);
        let made = link.conns.clone();
        let end = ClientEnd::new(&grant);
        let (numbers_writes, is_sealed) = (end.numbers_writes(), end.is_sealed());
        if let Some(conn) = self.network.conns.get_mut(&id) {
            conn.client_end = Some(end);
        }
        if numbers_writes {
            self.send_to_donor(id, ToDonor::Bytes(first_words(is_sealed).to_vec()));
        }
        if made.len() < wanted {
            return self.open_one(c, donor);
        }
        if let Some(link) = self.clients[c].links.get_mut(&donor) {
            link.up = true;
        }
        self.step_client(c, Event::Opened { donor, session });
        if made.iter().any(|conn| self.network.conns.get(conn).is_some_and(|conn| conn.client_ended)) {
            let failure = LinkFailure::Broken("it closed the connection".into());
            self.step_client(c, Event::Failed { donor, session, failure });
        }
    }

    /// Whether it was made for nothing but to hear whether the donor is there; now that is known.
    fn ends_probe(&mut self, c: usize, id: u64) -> bool {
        let Some(conn) = self.network.conns.get(&id) else { return false };
        let link = self.clients[c].links.get_mut(&conn.link);
        link.is_some_and(|link| link.probe.take_if(|probe| *probe == id).is_some())
    }

    /// A connection ended, or was never made; `failure` is what that means while its link is being opened.
    pub(crate) fn conn_failed(&mut self, c: usize, id: u64, failure: LinkFailure) {
        let Some(conn) = self.network.conns.get_mut(&id).filter(|conn| conn.client_open) else { return };
        conn.client_ended = true;
        let (donor, session) = (conn.link, conn.session);
        if self.ends_probe(c, id) {
            return self.close_by_client(id);
        }
        let Some(link) = self.clients[c].links.get_mut(&donor) else { return };
        let failure = if link.opening == Some(id) {
            let made: Vec<u64> = link.conns.drain(..).chain(link.opening.take()).collect();
            made.into_iter().for_each(|conn| self.close_by_client(conn));
            failure
        } else if link.up {
            LinkFailure::Broken(failure.into_why())
        } else {
            return; // Found when the link is up.
        };
        say!(self, "client {c}: link to {donor} session {session}: {failure:?}");
        self.step_client(c, Event::Failed { donor, session, failure });
    }
}
