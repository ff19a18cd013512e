//! Tests of the codec and the machines from outside, in one program, which is built sooner than a dozen.
#![allow(clippy::unwrap_used)]

mod client_auth;
mod client_options;
mod client_transmission;
mod outbox;
mod pair;
mod properties;
mod replies;
mod requests;
mod sealed;
mod server_options;
mod starttls;
mod transmission;
