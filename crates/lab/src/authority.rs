//! A certificate for a server, or a client, on this machine, of an authority that nobody else knows.
//!
//! Owns the files, which are called as libnbd and `--etcd-certificates` look for them. Made by `openssl`.
//! Never: anything of a pool, which is an authority of its own. Called by: `web`, `etcd`, `remote_tls`.

use std::fs;

use crate::scratch::Scratch;
use crate::tools;

pub const AUTHORITY: &str = "ca-cert.pem";
pub const CERTIFICATE: &str = "client-cert.pem";
pub const KEY: &str = "client-key.pem";

#[track_caller]
fn run(scratch: &Scratch, arguments: &str) {
    let mut command = tools::command("openssl");
    tools::expect_success(command.args(arguments.split(' ')).current_dir(scratch.path()));
}

/// The authority takes back what it certified: it is in `ca-crl.pem`.
#[track_caller]
pub fn revoke(scratch: &Scratch) {
    let text = "[ca]\ndefault_ca = lab\n[lab]\ndatabase = all\ncrlnumber = number\ndefault_md = sha256\n\
                default_crl_days = 2\ncrl_extensions = more\n[more]\nauthorityKeyIdentifier = keyid:always\n";
    scratch.file("ca.cnf", text.as_bytes());
    scratch.file("all", b"");
    scratch.file("number", b"01\n");
    let by = format!("ca -config ca.cnf -cert {AUTHORITY} -keyfile ca.key");
    run(scratch, &format!("{by} -revoke {CERTIFICATE}"));
    run(scratch, &format!("{by} -gencrl -out ca-crl.pem"));
}

/// Writes the three files, and answers certificate and key as one text.
#[track_caller]
pub fn certify(scratch: &Scratch) -> Vec<u8> {
    let openssl = |arguments: &str| run(scratch, arguments);
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out {AUTHORITY} -subj /CN=lab -days 2"));
    openssl(&format!("req {key} -keyout {KEY} -out own.csr -subj /CN=127.0.0.1"));
    scratch.file("names", b"subjectAltName=IP:127.0.0.1\n");
    openssl(&format!(
        "x509 -req -in own.csr -CA {AUTHORITY} -CAkey ca.key -days 2 -extfile names -out {CERTIFICATE}"
    ));
    [KEY, CERTIFICATE].map(|name| fs::read(scratch.join(name)).expect("openssl wrote it")).concat()
}
