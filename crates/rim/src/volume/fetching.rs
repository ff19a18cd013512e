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
use cheetah_core::limits::CONNECT_DEADLINE_NS;
use cheetah_core::map::Filler;
use cheetah_core::volume::{Event, FetchError, Key, LinkFailure};
use cheetah_nbd::client::{Answer, Request, Take, Transmission, Want};
use cheetah_nbd::{Command, Errno};
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

/// The connection to who fills the volume.
struct Link {
    stream: Stream,
    input: Vec<u8>,
    transmission: Transmission<()>,
}

/// What came of questions, by their cookies.
struct Answers(Vec<(u64, Result<(), FetchError>)>);

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
            match self.connect(&ask.filler).await {
                Some(mut link) => {
                    next = self.talk(&mut link, ask).await;
                    for (asked, _) in link.transmission.end() {
                        self.answer(asked.cookie, Err(FetchError::Away));
                    }
                }
                None => {
                    // Whoever came meanwhile would be told the same.
                    let others = std::iter::from_fn(|| self.asks.try_recv().ok());
                    let all: Vec<Ask> = std::iter::once(ask).chain(others).collect();
                    for ask in all {
                        self.answer(ask.request.to_u64(), Err(FetchError::Away));
                    }
                }
            }
            if next.is_none() {
                next = self.asks.recv().await;
            }
        }
    }

    async fn connect(&mut self, filler: &Filler) -> Option<Link> {
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
                let transmission = Transmission::new(&opened.session, false, 0, u32::MAX);
                Some(Link { stream: opened.stream, input: opened.early, transmission })
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
    async fn talk(&mut self, link: &mut Link, first: Ask) -> Option<Ask> {
        let filler = first.filler.clone();
        let mut output = Vec::new();
        link.queue(&first, &mut output);
        loop {
            let is_lost = link.stream.send_all(&mut output).await.is_err();
            let mut answers = Answers(Vec::new());
            let used = link.transmission.received(&link.input, &mut answers);
            for (request, result) in answers.0 {
                self.answer(request, result);
            }
            link.input.drain(..used.ok().filter(|_| !is_lost)?);
            tokio::select! {
                received = link.stream.receive_some(&mut link.input) => received.ok()?,
                asked = self.asks.recv() => {
                    let ask = asked?;
                    if ask.filler != filler {
                        return Some(ask);
                    }
                    link.queue(&ask, &mut output);
                }
            }
        }
    }

    fn answer(&self, request: u64, result: Result<(), FetchError>) {
        if let Some(driver) = self.driver.upgrade() {
            driver.borrow_mut().event(Event::Fetched { request: Key::from_u64(request), result });
        }
    }
}

impl Link {
    fn queue(&mut self, ask: &Ask, output: &mut Vec<u8>) {
        let Ask { request, offset, len, .. } = *ask;
        self.transmission.queue(Request::plain(request.to_u64(), Command::Cache, offset, len, ()));
        self.transmission.make_requests(0);
        let before = output.len();
        self.transmission.unsent().for_each(|part| output.extend_from_slice(part.head));
        self.transmission.sent(output.len() - before);
    }
}

impl Take<()> for Answers {
    fn data(&mut self, (): &(), _: u32, _: &[u8]) {}

    fn hole(&mut self, (): &(), _: u32, _: u32) {}

    fn answer(&mut self, answer: Answer<()>) {
        let result = match answer.error {
            None => Ok(()),
            Some(Errno::Io) => Err(FetchError::Unreadable),
            Some(_) => Err(FetchError::Away),
        };
        self.0.push((answer.cookie, result));
    }
}
