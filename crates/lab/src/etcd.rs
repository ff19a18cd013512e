//! A real etcd: of one member, started, stopped, killed, and looked into; or of three, of which one can be
//! frozen. Invariant: it has ports and a directory of its own, is ready when its constructor returns, and is
//! ended by id. Called by: `tests/etcd.rs`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::process::Process;
use crate::rivals::free_port;
use crate::scratch::Scratch;
use crate::{authority, tools, wait};

/// A running etcd.
#[derive(Debug)]
pub struct Etcd {
    /// `None` while it is away.
    process: Option<Process>,
    client: u16,
    peer: u16,
    is_tls: bool,
    scratch: Scratch,
}

impl Etcd {
    #[track_caller]
    pub fn start() -> Self {
        Self::start_in(Scratch::in_memory(), false)
    }

    /// By TLS alone, to clients that show a certificate of its authority.
    #[track_caller]
    pub fn start_tls() -> Self {
        let scratch = Scratch::in_memory();
        authority::certify(&scratch);
        Self::start_in(scratch, true)
    }

    #[track_caller]
    fn start_in(mut scratch: Scratch, is_tls: bool) -> Self {
        // A free port may be taken by another run before etcd binds it; then it ends, and we ask again.
        for _ in 0..5 {
            let (client, peer) = (free_port(), free_port());
            let mut etcd = Self { process: None, client, peer, is_tls, scratch };
            if etcd.come_back() {
                return etcd;
            }
            scratch = etcd.scratch;
        }
        panic!("etcd finds no free ports");
    }

    /// Kills it (SIGKILL); what it stored stays.
    pub fn go_away(&mut self) {
        self.process = None;
    }

    /// Starts it again where it was; false when its ports are taken.
    #[track_caller]
    pub fn come_back(&mut self) -> bool {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (client, peer) = (url(self.client), url(self.peer));
        let client = if self.is_tls { client.replace("http://", "https://") } else { client };
        let mut command = tools::command("etcd");
        if self.is_tls {
            let options = ["--cert-file", "--key-file", "--trusted-ca-file"];
            for (option, file) in
                options.into_iter().zip(["client-cert.pem", "client-key.pem", "ca-cert.pem"])
            {
                command.arg(option).arg(self.scratch.join(file));
            }
            command.arg("--client-cert-auth");
        }
        command.arg("--data-dir").arg(self.scratch.join("data")).args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &format!("default={peer}"),
        ]);
        let mut process = Process::start("etcd", command, self.scratch.path());
        let ready = wait::for_some("etcd", wait::SOON, || match self.answers() {
            true => Some(true),
            false => (!process.is_running()).then_some(false),
        });
        self.process = ready.then_some(process);
        ready
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.client))
    }

    /// As `--state` takes it.
    pub fn state(&self) -> String {
        let scheme = if self.is_tls { "etcds" } else { "etcd" };
        format!("{scheme}://{}/lab", self.address())
    }

    /// As `--etcd-certificates` takes it.
    pub fn certificates(&self) -> &Path {
        self.scratch.path()
    }

    fn answers(&self) -> bool {
        if !self.is_tls {
            return self.post("/v3/kv/range", &json!({"key": "YQ=="})).is_some();
        }
        let mut curl = tools::command("curl");
        for (option, file) in
            [("--cacert", "ca-cert.pem"), ("--cert", "client-cert.pem"), ("--key", "client-key.pem")]
        {
            curl.arg(option).arg(self.scratch.join(file));
        }
        curl.args(["-sf", &format!("https://{}/health", self.address())]);
        tools::output(&mut curl).status.success()
    }

    /// What is stored under a name of the pool, and all that comes after it up to `to`: (key, value), in
    /// base64, as etcd has them, with the revision of the last change.
    #[track_caller]
    pub fn stored(&self, from: &str, to: &str) -> Value {
        let body =
            json!({"key": base64(&format!("/lab/{from}")), "range_end": base64(&format!("/lab/{to}"))});
        self.post("/v3/kv/range", &body).expect("etcd answers")["kvs"].clone()
    }

    /// Puts a key of the pool behind everybody's back.
    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        let body = json!({"key": base64(&format!("/lab/{key}")), "value": base64(value)});
        self.post("/v3/kv/put", &body).expect("etcd answers");
    }

    /// Deletes what [`Etcd::stored`] answers.
    #[track_caller]
    pub fn forget(&self, from: &str, to: &str) {
        let body =
            json!({"key": base64(&format!("/lab/{from}")), "range_end": base64(&format!("/lab/{to}"))});
        self.post("/v3/kv/deleterange", &body).expect("etcd answers");
    }

    /// Puts what [`Etcd::stored`] answered back.
    #[track_caller]
    pub fn restore(&self, stored: &Value) {
        for kept in stored.as_array().into_iter().flatten() {
            let body = json!({"key": kept["key"], "value": kept["value"]});
            self.post("/v3/kv/put", &body).expect("etcd answers");
        }
    }

    fn post(&self, path: &str, body: &Value) -> Option<Value> {
        post(self.client, path, body)
    }
}

/// Three members that choose a leader among themselves.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Process>,
    clients: Vec<u16>,
    _scratch: Scratch,
}

impl Cluster {
    #[track_caller]
    pub fn start() -> Self {
        // A free port may be taken by another run before etcd binds it; then we ask again.
        for _ in 0..5 {
            let mut cluster = Self::with_ports(std::array::from_fn(|_| (free_port(), free_port())));
            let ready = wait::for_some("three members of etcd", wait::SOON, || {
                let ended = cluster.members.iter_mut().any(|member| !member.is_running());
                let answers = |client: &u16| post(*client, "/v3/kv/range", &json!({"key": "YQ=="})).is_some();
                (ended || cluster.clients.iter().all(answers)).then_some(!ended)
            });
            if ready {
                return cluster;
            }
        }
        panic!("etcd finds no free ports");
    }

    fn with_ports(ports: [(u16, u16); 3]) -> Self {
        let scratch = Scratch::in_memory();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let all: Vec<String> =
            ports.iter().map(|(client, peer)| format!("m{client}={}", url(*peer))).collect();
        let member = |(client, peer): &(u16, u16)| {
            let mut command = tools::command("etcd");
            command.arg("--data-dir").arg(scratch.join(client.to_string()));
            command.args(["--name", &format!("m{client}"), "--initial-cluster", &all.join(",")]);
            command.args(["--listen-client-urls", &url(*client), "--advertise-client-urls", &url(*client)]);
            command.args(["--listen-peer-urls", &url(*peer), "--initial-advertise-peer-urls", &url(*peer)]);
            Process::start(&format!("etcd-{client}"), command, scratch.path())
        };
        let members = ports.iter().map(member).collect();
        Self { members, clients: ports.iter().map(|(client, _)| *client).collect(), _scratch: scratch }
    }

    /// As `--state` takes it.
    pub fn state(&self) -> String {
        let members: Vec<String> = self.clients.iter().map(|client| format!("127.0.0.1:{client}")).collect();
        format!("etcd://{}/lab", members.join(","))
    }

    /// The member that leads the others.
    #[track_caller]
    pub fn leader(&self) -> usize {
        let leads = |client: &u16| {
            let status = post(*client, "/v3/maintenance/status", &json!({}));
            status.is_some_and(|status| status["leader"] == status["header"]["member_id"])
        };
        wait::for_some("a leader of etcd", wait::SOON, || self.clients.iter().position(leads))
    }

    /// Stops a member: its kernel goes on taking what is sent to it.
    pub fn freeze(&self, member: usize) {
        self.members[member].signal(Signal::STOP);
    }

    /// Undoes [`Cluster::freeze`].
    pub fn thaw(&self, member: usize) {
        self.members[member].signal(Signal::CONT);
    }
}

fn post(port: u16, path: &str, body: &Value) -> Option<Value> {
    let body = body.to_string();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    // HTTP/1.0: the answer ends with the connection.
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if head.split(' ').nth(1)? != "200" {
        return None;
    }
    serde_json::from_str(body).ok()
}

/// etcd's API takes keys and values so.
pub fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |bytes: &[u8]| {
        let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = |at: usize| match at <= bytes.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63]),
            false => '=',
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    text.as_bytes().chunks(3).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_what_others_make_of_it() {
        for (text, encoded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(text), encoded);
        }
    }
}
