//! Any bytes are a reply or refused; decode, encode, decode, encode agree; memory stays within the limits.
#![no_main]

use cheetah_nbd::client::Reply;
use cheetah_nbd::limits::REPLY_HEAD_BYTES_MAX;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let need = Reply::need(bytes);
    assert!(need.is_err() || need.is_ok_and(|need| need <= REPLY_HEAD_BYTES_MAX));
    let Ok(Some((first, taken))) = Reply::decode(bytes) else { return };
    assert!(taken <= bytes.len());
    let mut once = Vec::new();
    first.encode(&mut once);
    let (second, whole) = Reply::decode(&once).expect("our own bytes").expect("all of them");
    assert_eq!((&second, whole), (&first, once.len()));
    let mut twice = Vec::new();
    second.encode(&mut twice);
    assert_eq!(once, twice);
});
