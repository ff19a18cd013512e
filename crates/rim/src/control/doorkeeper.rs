//! Who may talk to a coordinator at all, by how the request came: not a page in somebody's browser.
//!
//! Owns the names under which this coordinator may be called, and three rules. A page of another site that
//! has its name point here sends that name as `Host`; it sends an `Origin` with what changes something; and
//! what changes something has to name the API's version, which no form of a page can. Never: who may do what.
//! Key invariant: a request that a browser makes for a foreign page is refused before anything of it is
//! looked at. Tests: below, and `lab/tests/hostile.rs`.

use super::wire::VERSION_HEADER;
use axum::http::{HeaderMap, Method, Uri, header};
use cheetah_core::api::{API_VERSION, Refusal, RefusalCode};
use cheetah_core::text::harmless;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// How much of a foreign name is shown to whom it is refused.
const SHOWN_BYTES_MAX: usize = 128;

#[derive(Debug)]
pub(super) struct Doorkeeper {
    /// In lower case.
    names: BTreeSet<String>,
}

impl Doorkeeper {
    /// One that knows what this machine is called: its name, alone, by mDNS, with the domains that it
    /// searches, and what /etc/hosts calls it.
    pub(super) fn of_this_machine() -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self { names: own_names(&name, &read("/etc/resolv.conf"), &read("/etc/hosts")) }
    }

    /// # Errors
    /// Why it is not let in, with what to do.
    pub(super) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        if headers.contains_key(header::ORIGIN) {
            return refuse(
                "this request comes from a page in a browser (it has an `Origin`), and pages are not let in; use \
                 `cheetah`, or a program that sends none"
                    .to_owned(),
            );
        }
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
        let in_target = uri.authority().map(|authority| authority.as_str());
        if hosts.next().is_some() || !self.is_own(host) || in_target.is_some_and(|host| !self.is_own(host)) {
            let shown = harmless(in_target.unwrap_or(host), SHOWN_BYTES_MAX);
            let names = self.names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            return refuse(format!(
                "this coordinator is not called '{shown}' (the request's `Host`): call it by an IP address, or as {names}; a \
                 name for it in /etc/hosts of its machine counts from its next start"
            ));
        }
        let changes = *method != Method::GET && *method != Method::HEAD;
        if changes && !headers.contains_key(VERSION_HEADER) {
            return refuse(format!(
                "a request that may change something has to send the header `{VERSION_HEADER}: {API_VERSION}`"
            ));
        }
        Ok(())
    }

    /// Of `NAME`, `NAME:PORT`, `[IPv6]:PORT`.
    fn is_own(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            // An IPv6 address has colons of its own.
            Some((name, port)) if !port.contains(']') => (name, port),
            _ => (host, "0"),
        };
        if port.parse::<u16>().is_err() {
            return false;
        }
        let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        match bracketed {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
                name.parse::<std::net::Ipv4Addr>().is_ok() || self.names.contains(&name)
            }
        }
    }
}

fn refuse(message: String) -> Result<(), Refusal> {
    Err(Refusal { code: RefusalCode::Invalid, message })
}

fn own_names(name: &str, resolv_conf: &str, hosts: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::from(["localhost".to_owned()]);
    let fields = |line: &str| -> Vec<String> {
        let text = line.split(['#', ';']).next().unwrap_or_default();
        text.split_whitespace().map(str::to_ascii_lowercase).collect()
    };
    let name = name.to_ascii_lowercase();
    if !name.is_empty() {
        let short = name.split('.').next().unwrap_or_default().to_owned();
        for line in resolv_conf.lines().map(fields) {
            if let [key, domains @ ..] = &line[..]
                && ["search", "domain"].contains(&key.as_str())
            {
                names.extend(domains.iter().filter(|of| *of != ".").map(|of| format!("{short}.{of}")));
            }
        }
        names.extend([name.clone(), format!("{short}.local"), short]);
    }
    for line in hosts.lines().map(fields) {
        let [address, called @ ..] = &line[..] else { continue };
        let local = address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if local || called.contains(&name) {
            names.extend(called.iter().cloned());
        }
    }
    names
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn doorkeeper() -> Doorkeeper {
        let hosts =
            "127.0.0.1 localhost\n127.0.1.1\tkali\n10.0.0.1 pool.case KALI # the pool\n10.0.0.2 other\n";
        Doorkeeper { names: own_names("Kali", "search corp.example .\nnameserver 10.0.0.9\n", hosts) }
    }

    fn check(method: &Method, uri: &str, headers: &[(&'static str, &'static str)]) -> Result<(), String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        doorkeeper().check(method, &uri.parse().unwrap(), &map).map_err(|refusal| refusal.message)
    }

    #[test]
    fn it_is_called_by_an_address_or_by_its_own_names() {
        for own in [
            "10.0.0.1:10808",
            "127.0.0.1",
            "[::1]:7",
            "[fe80::1]",
            "localhost:10808",
            "kali",
            "KALI.local",
            "kali.corp.example:80",
            "kali.corp.example.",
            "pool.case",
        ] {
            assert!(doorkeeper().is_own(own), "{own}");
        }
        for foreign in [
            "",
            "evil.example",
            "evil.example:10808",
            "kali.evil.example",
            "localhost.evil.example",
            "10.0.0.1.evil.example",
            "other",
            "[evil]",
            "::1",
            "kali:x",
            "10.0.0.1:10808@evil.example",
        ] {
            assert!(!doorkeeper().is_own(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_page_of_another_site_is_not_let_in() {
        let own = ("host", "10.0.0.1:10808");
        assert_eq!(check(&Method::GET, "/v1/pool", &[own]), Ok(()));
        let said = check(&Method::GET, "/v1/pool", &[("host", "evil.example")]).unwrap_err();
        assert!(said.contains("evil.example") && said.contains("kali"), "{said}");
        assert!(check(&Method::GET, "/v1/pool", &[]).is_err());
        assert!(check(&Method::GET, "/v1/pool", &[own, ("host", "evil.example")]).is_err());
        assert!(check(&Method::GET, "http://evil.example/v1/pool", &[own]).is_err());
        for origin in ["http://10.0.0.1:10808", "http://evil.example", "null"] {
            let said = check(&Method::GET, "/v1/pool", &[own, ("origin", origin)]).unwrap_err();
            assert!(said.contains("Origin"), "{said}");
        }
        for method in [Method::POST, Method::DELETE, Method::PUT, Method::OPTIONS] {
            let said = check(&method, "/v1/volumes", &[own]).unwrap_err();
            assert!(said.contains(VERSION_HEADER), "{said}");
            assert_eq!(check(&method, "/v1/volumes", &[own, (VERSION_HEADER, "2")]), Ok(()));
        }
    }
}
