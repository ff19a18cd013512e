//! What the data thread is told beside requests, and its inbox of both.
//!
//! Never: what an order leads to; the machine says. Invariant: whoever waits for an answer gets one, and the
//! default once the volume is closed.

use super::handle::{Shared, Taker, VolumeHandle};
use super::{Driver, Seen};
use cheetah_core::api::Amend;
use cheetah_core::limits::REQUESTS_IN_FLIGHT_MAX;
use cheetah_core::map::{DonorId, VolumeMap};
use cheetah_core::volume::{Event, Scope};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{mpsc, oneshot};

/// Orders to the data thread beside requests.
pub(super) enum Order {
    Map(VolumeMap),
    /// The answer to an amendment.
    Amended(Option<VolumeMap>),
    LeaseLost,
    /// Donors that the coordinator has not heard of.
    Silent(Vec<DonorId>),
    Forget,
    Scrub(Scope),
    Look(oneshot::Sender<Option<Seen>>),
    /// Answered when every donor was reached or set aside.
    Settled(oneshot::Sender<Vec<(DonorId, String)>>),
    Close(oneshot::Sender<()>),
}

impl VolumeHandle {
    /// Hands a newer map to the machine; an older one is ignored.
    pub fn update_map(&self, map: VolumeMap) {
        self.order(Order::Map(map));
    }

    /// What the machine has to tell the coordinator: each is to be answered by `amended` or `lease_lost`.
    /// Once.
    #[must_use]
    pub fn take_amendments(&self) -> Option<mpsc::Receiver<Amend>> {
        self.0.amendments.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }

    /// The coordinator's answer to an amendment, or none because it could not be asked.
    pub fn amended(&self, map: Option<VolumeMap>) {
        self.order(Order::Amended(map));
    }

    /// The coordinator says that the lease has ended: nothing is written any more.
    pub fn lease_lost(&self) {
        self.order(Order::LeaseLost);
    }

    /// The coordinator has not heard of these donors for long: they are asked whether they are there.
    pub fn ask_donors(&self, silent: Vec<DonorId>) {
        self.order(Order::Silent(silent));
    }

    /// Where bytes go that will likely be read soon: `take(offset, bytes)`, on the data thread, must not
    /// block. With `Caching::takes`. None: nobody takes them any more.
    pub fn offer_to(&self, take: Option<Taker>) {
        *self.0.taker() = take;
    }

    /// What was read ahead may be out of date: requests that are submitted from now on do not get it.
    pub fn forget(&self) {
        self.0.forgets.fetch_add(1, Ordering::AcqRel);
        self.order(Order::Forget);
    }

    /// How often `forget` was called.
    #[must_use]
    pub fn forgets(&self) -> u64 {
        self.0.forgets.load(Ordering::Acquire)
    }

    /// Donors compare what they hold with its checksums, once, beside what goes on. `look` shows how far that
    /// is.
    pub fn scrub(&self, scope: Scope) {
        self.order(Order::Scrub(scope));
    }

    /// How it is now. Nothing is to be said of it once it is closed: it then has no donors that could be lost
    /// or found.
    pub async fn look(&self) -> Option<Seen> {
        self.ask(Order::Look).await
    }

    /// Waits until every donor was reached or set aside, and says which were set aside.
    pub async fn settled(&self) -> Vec<(DonorId, String)> {
        self.ask(Order::Settled).await
    }

    /// Ends it: what was submitted is still answered, then the connections are closed and the thread ends.
    pub async fn close(&self) {
        self.ask(Order::Close).await;
    }

    /// The same, and nobody waits for it.
    pub fn begin_to_close(&self) {
        self.order(Order::Close(oneshot::channel().0));
    }

    fn order(&self, order: Order) {
        let mut inbox = self.inbox();
        if inbox.closed {
            return; // Whoever waits for an answer gets the default.
        }
        inbox.orders.push(order);
        drop(inbox);
        self.0.arrived.notify_one();
    }

    async fn ask<T: Default>(&self, order: fn(oneshot::Sender<T>) -> Order) -> T {
        let (answer, answered) = oneshot::channel();
        self.order(order(answer));
        answered.await.unwrap_or_default()
    }
}

/// Serves the inbox until it is told to close.
pub(super) async fn take_orders(driver: Rc<RefCell<Driver>>, shared: Arc<Shared>) -> oneshot::Sender<()> {
    let handle = VolumeHandle(shared.clone());
    let mut submissions = VecDeque::with_capacity(REQUESTS_IN_FLIGHT_MAX);
    loop {
        shared.arrived.notified().await;
        let (tasks, orders) = {
            let mut inbox = handle.inbox();
            std::mem::swap(&mut inbox.submissions, &mut submissions);
            (std::mem::take(&mut inbox.tasks), std::mem::take(&mut inbox.orders))
        };
        for task in tasks {
            tokio::task::spawn_local(task());
        }
        let mut driver = driver.borrow_mut();
        driver.came();
        // Requests that were submitted after it may be in the same batch.
        let forgets = orders.iter().filter(|order| matches!(order, Order::Forget)).count();
        if forgets > 0 {
            driver.step(Event::Forget);
            shared.forgotten.fetch_add(forgets as u64, Ordering::AcqRel);
        }
        driver.submit_all(submissions.drain(..));
        for order in orders {
            match order {
                Order::Map(map) => driver.step(Event::Map(map)),
                Order::Amended(map) => driver.step(Event::Amended(map)),
                Order::LeaseLost => {
                    driver.step(Event::LeaseLost);
                    driver.step(Event::Amended(None));
                }
                Order::Silent(donors) => driver.step(Event::Silent(donors)),
                Order::Forget => {}
                Order::Scrub(scope) => driver.step(Event::Scrub(scope)),
                Order::Look(answer) => {
                    let Driver { machine, .. } = &*driver;
                    let (report, scrubbed) = (machine.report(), machine.scrubbed().clone());
                    let seen = Seen { lost: driver.lost(), report, scrubbed };
                    drop(answer.send(Some(seen)));
                }
                Order::Settled(answer) => driver.settling.push(answer),
                Order::Close(closing) => {
                    driver.submit_all(handle.close_inbox().into_iter());
                    driver.carry_out();
                    return closing;
                }
            }
        }
        driver.carry_out();
    }
}
