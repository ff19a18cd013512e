//! Asking who fills the volume to bring blocks that are not here yet.
//!
//! Owns the connection to it, made when somebody first waits for a block, and which questions are open.
//! Never: bytes of the volume, which come from donors; or when to ask again (the machine says). Invariant:
//! each question is answered once, with `Away` where its connection ends first. Called by `super`. Tests:
//! `lab/tests/open.rs`.

use super::Driver;
use super::open::connect_as;
use crate::members::Holder;
use crate::stream::{Stream, Transport};
use cheetah_core::limits::{CONNECT_DEADLINE_NS, REQUESTS_IN_FLIGHT_MAX};
use cheetah_core::map::Filler;
use cheetah_core::volume::{Event, FetchError, Key, LinkFailure};
use cheetah_nbd::client::{Reply, Want};
use cheetah_nbd::{CmdFlags, Command, Errno, RequestHeader};
use std::cell::RefCell;
use std::rc::Weak;
use std::time::Duration;
use tokio::sync::mpsc;

/// A question, and whom it is for.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) request: Key,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) filler: Filler,
}

/// The tellers of one volume's driver.
struct Asking {
    driver: Weak<RefCell<Driver>>,
    asks: mpsc::UnboundedReceiver<Ask>,
    transport: Transport,
    /// Why the last one was not reached: said once.
    why: Option<LinkFailure>,
}

/// Where questions go, which a task of the data thread asks from now on.
pub(super) fn start(driver: Weak<RefCell<Driver>>, transport: Transport) -> mpsc::UnboundedSender<Ask> {
    let (ask, asks) = mpsc::unbounded_channel();
    tokio::task::spawn_local(Asking { driver, asks, transport, why: None }.ask_all());
    ask
}

impl Asking {
    async fn ask_all(mut self) {
        let mut next = self.asks.recv().await;
        while let Some(ask) = next.take() {
            let filler = ask.filler.clone();
            let mut open = Vec::with_capacity(REQUESTS_IN_FLIGHT_MAX);
            open.push(ask.request);
            next = match self.connect(&filler).await {
                Some((stream, input)) => self.talk(stream, input, ask, &mut open).await,
                None => {
                    // Whoever came meanwhile would be told the same.
                    while let Ok(ask) = self.asks.try_recv() {
                        open.push(ask.request);
                    }
                    None
                }
            };
            open.into_iter().for_each(|request| self.answer(request, Err(FetchError::Away)));
            if next.is_none() {
                next = self.asks.recv().await;
            }
        }
    }

    async fn connect(&mut self, filler: &Filler) -> Option<(Stream, Vec<u8>)> {
        let endpoint = filler.address.parse().ok()?;
        let want = Want {
            export: filler.export.clone(),
            structured: false,
            base_allocation: false,
            dirty: false,
            context: false,
            auth: false,
        };
        let connecting = connect_as(&endpoint, Holder::Filler, want, &self.transport);
        let limit = Duration::from_nanos(CONNECT_DEADLINE_NS);
        match tokio::time::timeout(limit, connecting).await.ok()? {
            Ok(opened) => {
                self.why = None;
                Some((opened.stream, opened.early))
            }
            Err(failure) => {
                // One that has ended is waited for, and the next one comes.
                if !matches!(failure, LinkFailure::Refused(_)) && self.why.as_ref() != Some(&failure) {
                    let why = failure.clone().into_why();
                    tracing::warn!("who fills the volume is not reached, and tools wait for it: {why}");
                    self.why = Some(failure);
                }
                None
            }
        }
    }

    /// Until the connection ends, or a question is for another; that one is handed back.
    async fn talk(
        &mut self,
        mut stream: Stream,
        mut input: Vec<u8>,
        first: Ask,
        open: &mut Vec<Key>,
    ) -> Option<Ask> {
        let filler = first.filler.clone();
        let mut output = header(&first).to_vec();
        loop {
            if stream.send_all(&mut output).await.is_err() || !self.take(&mut input, open) {
                return None;
            }
            tokio::select! {
                received = stream.receive_some(&mut input) => received.ok()?,
                asked = self.asks.recv() => {
                    let ask = asked?;
                    if ask.filler != filler {
                        return Some(ask);
                    }
                    open.push(ask.request);
                    output.extend_from_slice(&header(&ask));
                }
            }
        }
    }

    /// Takes the answers that are whole. False: it said something that is none.
    fn take(&self, input: &mut Vec<u8>, open: &mut Vec<Key>) -> bool {
        loop {
            let (cookie, error, used) = match Reply::decode(input) {
                Ok(Some((Reply::Simple { cookie, error }, used))) => (cookie, error, used),
                Ok(None) => return true,
                _ => return false,
            };
            input.drain(..used);
            let request = Key::from_u64(cookie);
            let Some(at) = open.iter().position(|key| *key == request) else { return false };
            open.swap_remove(at);
            self.answer(
                request,
                match error {
                    None => Ok(()),
                    Some(Errno::Io) => Err(FetchError::Unreadable),
                    Some(_) => Err(FetchError::Away),
                },
            );
        }
    }

    fn answer(&self, request: Key, result: Result<(), FetchError>) {
        if let Some(driver) = self.driver.upgrade() {
            driver.borrow_mut().event(Event::Fetched { request, result });
        }
    }
}

fn header(ask: &Ask) -> [u8; RequestHeader::BYTES] {
    let Ask { request, offset, len, .. } = ask;
    let (cookie, offset, length) = (request.to_u64(), *offset, *len);
    RequestHeader { flags: CmdFlags::EMPTY, command: Command::Cache, cookie, offset, length }.encode()
}
