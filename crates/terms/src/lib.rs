//! What core says, in NBD's terms, and back: for a client's parts (`client`), for a donor's answers
//! (`donor`), and for what both say of writes (`marks`).
//!
//! Owns: which command, flags and context a part becomes; which part error an errno is, and which errno a
//! denial; what a state's bits mean; what an export of a donor offers, and what its refusal means. Never: a
//! decision (`core`), a byte of the protocol (`nbd`), memory, or when anything is sent.
//! Invariant: whatever a client asks in these terms, a donor takes for what was meant.
//! Called by `rim` and by `sim`, so that the simulator breaks the words which production uses. `sim` counts
//! sectors on the wire and bytes in core: it scales what goes in here, or what comes out. Tests: in each
//! file; the simulator.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
pub mod donor;
mod marks;
