//! The thread that has the connections to servers, and how a reading thread waits for what is done there.
//!
//! Owns: one runtime for all sources, begun with the first that needs it. Never: what is sent. It lives as
//! long as the process: a source may end on a thread where no runtime may be taken apart. Called by `http`.

use std::io;
use std::sync::{Mutex, PoisonError, mpsc};
use tokio::runtime::{Builder, Handle};

static RUNNING: Mutex<Option<Handle>> = Mutex::new(None);

fn running() -> io::Result<Handle> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*running {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    std::thread::Builder::new().name("sources".to_owned()).spawn(run)?;
    Ok(running.insert(handle).clone())
}

/// Does some work there, and waits for it. Not to be called from a task.
pub(crate) fn wait<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
    let (done, result) = mpsc::channel();
    running()?.spawn(async move {
        let _ = done.send(work.await);
    });
    result.recv().map_err(|_| io::Error::other("the thread that has the connections ended"))
}
