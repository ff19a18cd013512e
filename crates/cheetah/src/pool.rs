//! The commands that change what the coordinator knows, and the coordinator itself: coordinate, create, grow,
//! delete. Never: data of volumes.

use crate::cli;
use crate::cli_serving;
use crate::custody;
use crate::failure::{Exit, Failure};
use crate::health;
use crate::members;
use crate::output;
use crate::signals::Signals;
use cheetah_core::api::{Answer, Call, PoolStatus, Size, VolumeDetail, VolumeStatus, WrappedKey};
use cheetah_core::units::{parse_bytes, show_bytes};
use cheetah_rim::control::{self, Access, Client, CoordinateOptions, EtcdAt, NoPool, Role, StateAt, random};
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::sync::watch;

pub async fn find(pool: &cli::PoolArg) -> Result<Client, Failure> {
    match members::named(pool)? {
        Some(url) => members::client(&url).await,
        None => Err(unnamed(control::find_pool().await)),
    }
}

/// Nobody proves who it is in the clear, so a pool is not used only because it was found.
pub fn unnamed(found: Result<Client, NoPool>) -> Failure {
    match found {
        Ok(found) => Failure::new(
            Exit::NoPool,
            format!("no pool was named, and the one found at {} is in the clear", found.url()),
        )
        .advise(format!(
            "--pool {} says that it is yours and that this will do; others can pretend to be it",
            found.url()
        )),
        Err(NoPool::Here(error)) => error.into(),
        Err(why) => Failure::new(Exit::NoPool, why.to_string()),
    }
}

pub fn parse_listen(listen: &str) -> Result<SocketAddr, Failure> {
    let with_ip = listen.strip_prefix(':').map(|port| format!("127.0.0.1:{port}"));
    with_ip.as_deref().unwrap_or(listen).parse().map_err(|_| {
        Failure::usage(format!(
            "--listen '{listen}' is not IP:PORT, like 10.0.0.5:10808 (port 0 picks a free one)"
        ))
    })
}

/// Whoever listens beyond loopback without TLS is told what that means; the Internet is too far.
pub fn check_clear(what: &str, address: SocketAddr, is_tls: bool) -> Result<(), Failure> {
    if is_tls {
        return Ok(());
    }
    refuse_public(what, address)?;
    if !address.ip().is_loopback() {
        output::note(&format!(
            "{what} on {address} is in the clear and open to who can reach it: use a network you trust"
        ));
    }
    Ok(())
}

/// For what is in the clear.
pub fn refuse_public(what: &str, address: SocketAddr) -> Result<(), Failure> {
    match control::public_at(address) {
        None => Ok(()),
        Some(public) => Err(Failure::usage(format!(
            "{what} would be in the clear on {public}, which can be reached from the Internet: name a loopback or private \
             address"
        ))),
    }
}

pub async fn coordinate(options: cli_serving::Coordinate) -> Result<(), Failure> {
    let cli_serving::Coordinate { listen, state, etcd_certificates, plaintext, certificates_last, .. } =
        options;
    let state = match state.as_deref() {
        Some(etcd) if etcd.contains("://") => {
            let at: EtcdAt = etcd.parse().map_err(|why| Failure::usage(format!("--state: {why}")))?;
            StateAt::Etcd(at.with_certificates(etcd_certificates))
        }
        _ if etcd_certificates.is_some() => {
            return Err(Failure::usage("--etcd-certificates goes with --state etcds://"));
        }
        Some("memory") => StateAt::Memory,
        Some(directory) => StateAt::Directory(PathBuf::from(directory)),
        None => StateAt::Directory(default_state()?),
    };
    let listen = parse_listen(&listen)?;
    let access = if plaintext { Access::Plaintext } else { Access::Members };
    let running = control::coordinate(CoordinateOptions { listen, state, access, certificates_last }).await;
    let mut running = running.map_err(|e| Failure::failed(e.to_string()))?;
    check_clear("control traffic", running.address(), !plaintext)?;
    if running.is_new() {
        output::note(&format!(
            "new pool {}: it has nothing of any pool before it, and donors that hold something of another keep \
             that and do not join",
            running.pool()
        ));
    }
    let mut signals = Signals::listen()?;
    // Whoever stands by has nothing to give out.
    if !plaintext && *running.role().borrow() == Role::Leads {
        members::found(&running).await;
    }
    output::ready(&running.url());
    let role = running.role();
    let ended = tokio::select! {
        ended = running.ended() => Some(ended),
        () = tell_role(role) => None,
        _ = signals.next() => None,
    };
    match ended {
        Some(ended) => ended,
        None => running.stop().await,
    }
    .map_err(|e| Failure::failed(e.to_string()))
}

/// Says when this coordinator stands by, and when it leads again. Never ends.
async fn tell_role(mut role: watch::Receiver<Role>) {
    let mut leads = true;
    loop {
        let now = role.borrow_and_update().clone();
        match (leads, &now) {
            (false, Role::Leads) => output::line("takes the lead"),
            (true, Role::StandsBy(why)) => output::line(&format!("stands by: {why}")),
            _ => {}
        }
        leads = now == Role::Leads;
        if role.changed().await.is_err() {
            // Whatever ended it is told by the coordinator itself.
            std::future::pending::<()>().await;
        }
    }
}

pub fn default_state() -> Result<PathBuf, Failure> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let base = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
    let none = || Failure::usage("neither XDG_STATE_HOME nor HOME is set: name a directory with --state");
    Ok(base.ok_or_else(none)?.join("cheetah"))
}

pub fn parse_size(size: &str) -> Result<Size, Failure> {
    match size {
        "all" => Ok(Size::All),
        _ => match parse_bytes(size).map_err(Failure::usage)? {
            0 => Err(Failure::usage("a volume of size 0 holds nothing: name a size, like 4G, or 'all'")),
            bytes => Ok(Size::Bytes(bytes)),
        },
    }
}

pub fn unexpected(answer: &Answer) -> Failure {
    Failure::failed(format!("the coordinator answered something else than was asked: {answer:?}"))
}

pub async fn volume(pool: &Client, call: Call) -> Result<VolumeDetail, Failure> {
    match pool.call(call).await? {
        Answer::Volume(detail) => Ok(*detail),
        other => Err(unexpected(&other)),
    }
}

pub async fn pool_status(pool: &Client) -> Result<PoolStatus, Failure> {
    match pool.call(Call::Pool).await? {
        Answer::Pool(status) => Ok(status),
        other => Err(unexpected(&other)),
    }
}

/// A name for what a command makes for itself, which nobody else has.
pub fn own_thing(what: &str) -> Result<String, Failure> {
    let number = random().map_err(|e| Failure::failed(format!("the kernel gives no random number: {e}")))?;
    Ok(format!("{what}-{:08x}", number >> 32))
}

pub async fn create(options: cli::Create) -> Result<(), Failure> {
    let size = parse_size(&options.size)?;
    let unit = options.unit.map(u32::try_from).transpose();
    let unit = unit.map_err(|_| Failure::usage("--unit is from 4K to 1M"))?;
    let pool = find(&options.pool).await?;
    let encrypted = encryption(&pool, &options.name, options.encrypt)?;
    let create = cheetah_core::api::Create {
        encrypted,
        redundancy: options.redundancy,
        unit,
        follow: options.follow,
        on: options.on.on,
        write_back: options.write_back.write_back,
        ..cheetah_core::api::Create::new(options.name, size)
    };
    let by_default = if options.redundancy.is_none() { ", the default here" } else { "" };
    let mut detail = volume(&pool, Call::Create(create)).await?;
    let case = custody::say_case(&pool, &detail.status.name, &options.case).await?;
    detail.case = Some(case).filter(custody::Case::is_named);
    report_volume(&detail, &options.json, "created")?;
    if options.json.json {
        return Ok(());
    }
    output::line(&format!("{}{by_default}: {}", detail.status.redundancy, survives(&detail)));
    if let Some(line) = health::line(&detail.status) {
        output::line(&line);
    }
    Ok(())
}

/// What the pool keeps of the key of a volume that is to be encrypted.
pub fn encryption(
    pool: &Client,
    name: &str,
    asked: cli::EncryptArg,
) -> Result<Option<Box<WrappedKey>>, Failure> {
    asked.encrypt.then(|| cheetah_client::key_of_new(pool, name)).transpose().map_err(Failure::from)
}

fn survives(detail: &VolumeDetail) -> String {
    health::survives(&detail.status, detail.rehearsal.as_ref())
}

fn report_volume(detail: &VolumeDetail, json: &cli::JsonArg, done: &str) -> Result<(), Failure> {
    if json.json {
        return output::json(detail);
    }
    let VolumeStatus { name, size, redundancy, medium, encrypted, write_back, .. } = &detail.status;
    let how = if *write_back { " with write-back" } else { "" };
    let on = if medium.is_memory() { String::new() } else { format!(" on {medium}{how}") };
    let cipher = if *encrypted { ", encrypted" } else { "" };
    output::line(&format!("{done} {name}: {size} bytes ({}), {redundancy}{on}{cipher}", show_bytes(*size)));
    Ok(())
}

pub async fn grow(options: cli::Grow) -> Result<(), Failure> {
    let size = parse_size(&options.size)?;
    let pool = find(&options.pool).await?;
    let detail = volume(&pool, Call::Grow { name: options.name, size }).await?;
    report_volume(&detail, &options.json, "grown")?;
    if !options.json.json {
        output::line(&format!("{}: {}", detail.status.redundancy, survives(&detail)));
    }
    Ok(())
}

pub async fn delete(options: cli::Named) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    pool.call(Call::Delete { name: options.name.clone() }).await?;
    done(&options.json, &format!("deleted {}", options.name))
}

pub fn done(json: &cli::JsonArg, text: &str) -> Result<(), Failure> {
    if json.json {
        return output::json(&serde_json::json!({ "done": text }));
    }
    output::line(text);
    Ok(())
}
