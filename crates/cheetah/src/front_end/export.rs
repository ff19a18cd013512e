//! The volume as an NBD export, over TCP or a Unix socket.
//!
//! Owns: the export from its order to its end. Never: its connections (`cheetah_front::export`). Tests:
//! `lab/tests/foreign_clients.rs` and others.

use super::Of;
use crate::daemon::Ready;
use crate::failure::Failure;
use crate::pool::refuse_public;
use cheetah_front::export::{self, Endpoint, Exported};
use cheetah_rim::stream::Transport;
use std::time::Duration;

/// How long clients get to take their last answers.
const PATIENCE: Duration = Duration::from_secs(35);

pub struct Export {
    endpoint: Endpoint,
    exported: Option<Exported>,
}

impl Export {
    /// `IP:PORT` or `unix:PATH`.
    pub fn at(listen: &str) -> Result<Export, Failure> {
        let endpoint = listen.parse().map_err(Failure::usage)?;
        Ok(Export { endpoint, exported: None })
    }

    pub fn start(&mut self, of: &Of<'_>, ready: &mut Ready) -> Result<(), Failure> {
        // A socket's file says who may connect.
        let transport = match self.endpoint {
            Endpoint::Tcp(_) => of.transport.clone(),
            Endpoint::Unix(_) => Transport::default(),
        };
        let is_tls = transport.tls().is_some();
        if let (Endpoint::Tcp(address), false) = (&self.endpoint, is_tls) {
            refuse_public("the export", *address)?;
        }
        let exported = export::serve(of.volume, &self.endpoint, transport)
            .map_err(|e| Failure::failed(e.to_string()))?;
        let endpoint = exported.endpoint();
        match endpoint {
            _ if is_tls => {}
            _ if !exported.is_local() => {
                ready.notes.push(format!("{endpoint} is in the clear and open to who can reach it"));
            }
            Endpoint::Tcp(_) => ready.notes.push(format!(
                "{endpoint} is open to every user of this machine: without --listen only you can reach the export"
            )),
            Endpoint::Unix(_) => {}
        }
        ready.uri = Some(exported.uri());
        if ready.place.is_empty() {
            ready.place = exported.uri();
        }
        self.exported = Some(exported);
        Ok(())
    }

    pub async fn end(&mut self) {
        if let Some(exported) = self.exported.take() {
            exported.stop(PATIENCE).await;
        }
    }
}
