//! Between a donor's connections and its control loop: who is let in, and who has to go.
//!
//! Owns the shared snapshot of `Access` and the two messages. Never: the decision, which is `core::donor`'s.
//! Invariant: a connection that was admitted reports `closed` once, after it has touched the arena for the last
//! time; the control loop admits a newer session only then.

use cheetah_core::donor::{Access, Grant};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{mpsc, oneshot};

/// The connections' end.
#[derive(Clone, Debug)]
pub struct Gate {
    access: Arc<RwLock<Arc<Access>>>,
    /// None: everyone is let in that `Access` lets in (a donor without a pool).
    control: Option<mpsc::UnboundedSender<Knock>>,
}

/// The control loop's end.
#[derive(Debug)]
pub struct GateKeeper {
    access: Arc<RwLock<Arc<Access>>>,
    pub knocks: mpsc::UnboundedReceiver<Knock>,
}

/// What connections tell the control loop.
#[derive(Debug)]
pub enum Knock {
    /// A client has asked for this export, to use it. Dropping `answer` refuses it.
    Opened {
        export: String,
        answer: oneshot::Sender<Result<Admission, String>>,
    },
    Closed {
        conn: u64,
    },
}

/// An admitted connection.
#[derive(Debug)]
pub struct Admission {
    pub conn: u64,
    pub grant: Grant,
    /// Resolves (or is dropped) when the connection has to end at once.
    pub ended: oneshot::Receiver<()>,
}

/// A donor's gate, shut until the first `publish`.
#[must_use]
pub fn gate() -> (Gate, GateKeeper) {
    let access = Arc::new(RwLock::new(Arc::new(Access::default())));
    let (knock, knocks) = mpsc::unbounded_channel();
    (Gate { access: access.clone(), control: Some(knock) }, GateKeeper { access, knocks })
}

impl GateKeeper {
    /// Every request from now on is checked against this.
    pub fn publish(&self, access: Arc<Access>) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = access;
    }
}

impl Gate {
    /// The gate of a donor without a pool.
    #[must_use]
    pub fn alone(extents: u32) -> Gate {
        Gate { access: Arc::new(RwLock::new(Arc::new(Access::alone(extents)))), control: None }
    }

    #[must_use]
    pub fn access(&self) -> Arc<Access> {
        self.access.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks to be let in.
    ///
    /// # Errors
    /// Why not, for the client.
    pub async fn open(&self, export: &str) -> Result<(Pass, oneshot::Receiver<()>), String> {
        let Some(control) = &self.control else {
            let grant = self.access().open(export).map_err(|e| e.to_string())?;
            let (never, ended) = oneshot::channel();
            return Ok((Pass { grant, conn: 0, control: None, _never: Some(never) }, ended));
        };
        let (answer, answered) = oneshot::channel();
        let leaving = || "this donor is leaving its pool".to_owned();
        control.send(Knock::Opened { export: export.to_owned(), answer }).map_err(|_| leaving())?;
        let Admission { conn, grant, ended } = answered.await.map_err(|_| leaving())??;
        Ok((Pass { grant, conn, control: Some(control.clone()), _never: None }, ended))
    }
}

/// The right to be connected; its end is reported when it is dropped.
#[derive(Debug)]
pub struct Pass {
    pub grant: Grant,
    conn: u64,
    control: Option<mpsc::UnboundedSender<Knock>>,
    _never: Option<oneshot::Sender<()>>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(control) = &self.control {
            let _ = control.send(Knock::Closed { conn: self.conn });
        }
    }
}
