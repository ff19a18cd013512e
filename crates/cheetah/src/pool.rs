//! The commands that talk to the coordinator only: coordinate, create, list, show, status, grow, delete.
//! Never: data of volumes.

use crate::cli;
use crate::failure::{Exit, Failure};
use crate::health;
use crate::output;
use crate::signals::Signals;
use cheetah_core::api::{
    Answer, Call, DonorHealth, DonorStatus, PoolStatus, Size, VolumeDetail, VolumeStatus,
};
use cheetah_core::layout::LostRange;
use cheetah_core::map::DonorId;
use cheetah_core::units::{parse_bytes, show_bytes, show_count};
use cheetah_rim::control::{self, Client, CoordinateOptions, Role, StateAt};
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::sync::watch;

pub async fn find(pool: &cli::PoolArg) -> Result<Client, Failure> {
    control::find_pool(pool.pool.as_deref()).await.map_err(|e| Failure::new(Exit::NoPool, e.to_string()))
}

pub fn parse_listen(listen: &str) -> Result<SocketAddr, Failure> {
    let with_ip = listen.strip_prefix(':').map(|port| format!("127.0.0.1:{port}"));
    with_ip.as_deref().unwrap_or(listen).parse().map_err(|_| {
        Failure::usage(format!(
            "--listen '{listen}' is not IP:PORT, like 10.0.0.5:10808 (port 0 picks a free one)"
        ))
    })
}

/// Until TLS is built, whoever listens beyond loopback is told what that means.
pub fn warn_if_clear(what: &str, address: SocketAddr) {
    if !address.ip().is_loopback() {
        eprintln!(
            "cheetah: {what} on {address} is in the clear and open to who can reach it: use a network you trust"
        );
    }
}

pub async fn coordinate(options: cli::Coordinate) -> Result<(), Failure> {
    let state = match options.state.as_deref() {
        Some("memory") => StateAt::Memory,
        Some(etcd) if etcd.contains("://") => {
            StateAt::Etcd(etcd.parse().map_err(|why| Failure::usage(format!("--state: {why}")))?)
        }
        Some(directory) => StateAt::Directory(PathBuf::from(directory)),
        None => StateAt::Directory(default_state()?),
    };
    let listen = parse_listen(&options.listen)?;
    let running = control::coordinate(CoordinateOptions { listen, state }).await;
    let mut running = running.map_err(|e| Failure::failed(e.to_string()))?;
    warn_if_clear("control traffic", running.address());
    let mut signals = Signals::listen()?;
    output::line(&format!("ready: {}", running.url()));
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

fn default_state() -> Result<PathBuf, Failure> {
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
        Answer::Volume(detail) => Ok(detail),
        other => Err(unexpected(&other)),
    }
}

pub async fn pool_status(pool: &Client) -> Result<PoolStatus, Failure> {
    match pool.call(Call::Pool).await? {
        Answer::Pool(status) => Ok(status),
        other => Err(unexpected(&other)),
    }
}

pub async fn create(options: cli::Create) -> Result<(), Failure> {
    let size = parse_size(&options.size)?;
    let unit = options.unit.map(u32::try_from).transpose();
    let unit = unit.map_err(|_| Failure::usage("--unit is from 4K to 1M"))?;
    let pool = find(&options.pool).await?;
    let create = cheetah_core::api::Create {
        name: options.name,
        size,
        redundancy: options.redundancy,
        unit,
        follow: options.follow,
    };
    let by_default = if options.redundancy.is_none() { ", the default here" } else { "" };
    let detail = volume(&pool, Call::Create(create)).await?;
    report_volume(&detail, &options.json, "created")?;
    if options.json.json {
        return Ok(());
    }
    let redundancy = detail.status.redundancy;
    output::line(&format!("{redundancy}{by_default}: {}", health::survives(redundancy)));
    // Only a remark: the volume is there.
    let donors = pool_status(&pool).await.map(|status| status.donors).unwrap_or_default();
    if let Some(remark) = health::shared_host(&detail, &donors) {
        output::line(&remark);
    }
    Ok(())
}

fn report_volume(detail: &VolumeDetail, json: &cli::JsonArg, done: &str) -> Result<(), Failure> {
    if json.json {
        return output::json(detail);
    }
    let VolumeStatus { name, size, redundancy, .. } = &detail.status;
    output::line(&format!("{done} {name}: {size} bytes ({}), {redundancy}", show_bytes(*size)));
    Ok(())
}

pub async fn grow(options: cli::Grow) -> Result<(), Failure> {
    let size = parse_size(&options.size)?;
    let pool = find(&options.pool).await?;
    let detail = volume(&pool, Call::Grow { name: options.name, size }).await?;
    report_volume(&detail, &options.json, "grown")
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

pub async fn list(options: cli::Report) -> Result<(), Failure> {
    let mut status = pool_status(&find(&options.pool).await?).await?;
    if options.json.json {
        return output::json(&status.volumes);
    }
    sort_volumes(&mut status.volumes);
    print_volumes(&status.volumes);
    print_unwell(&status.volumes);
    Ok(())
}

/// As people look for them. Scripts get the order of their making.
fn sort_volumes(volumes: &mut [VolumeStatus]) {
    volumes.sort_by_cached_key(|volume| output::natural(&volume.name));
}

/// A line for each volume that is not whole, or is on the move.
fn print_unwell(volumes: &[VolumeStatus]) {
    let lines: Vec<String> = volumes.iter().filter_map(health::line).collect();
    if !lines.is_empty() {
        output::line("");
        lines.iter().for_each(|line| output::line(line));
    }
}

fn print_volumes(volumes: &[VolumeStatus]) {
    let row = |volume: &VolumeStatus| {
        let attached: Vec<String> = volume
            .attachments
            .iter()
            .map(|a| health::attached(a) + if a.read_only { " (read-only)" } else { "" })
            .collect();
        vec![
            volume.name.clone(),
            show_bytes(volume.size),
            volume.redundancy.to_string(),
            health::word(volume),
            if attached.is_empty() { "-".into() } else { attached.join("; ") },
        ]
    };
    output::table(
        &["VOLUME", "SIZE", "REDUNDANCY", "HEALTH", "ATTACHED"],
        &volumes.iter().map(row).collect::<Vec<_>>(),
    );
}

pub async fn status(options: cli::Report) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let mut status = pool_status(&pool).await?;
    if options.json.json {
        return output::json(&status);
    }
    status.donors.sort_by_cached_key(|donor| output::natural(&donor.name));
    sort_volumes(&mut status.volumes);
    let (alive, lost): (Vec<&DonorStatus>, Vec<_>) =
        status.donors.iter().partition(|donor| donor.health == DonorHealth::Alive);
    let lost: Vec<&str> = lost.into_iter().map(|donor| donor.name.as_str()).collect();
    output::line(&format!(
        "pool {} at {}: {} lent by {}, {} free{}",
        status.pool,
        pool.url(),
        show_bytes(status.bytes_total),
        show_count(alive.len() as u64, "donor"),
        show_bytes(status.bytes_free),
        if lost.is_empty() { String::new() } else { format!("; gone: {}", lost.join(", ")) }
    ));
    output::line("");
    let attachments = || status.volumes.iter().flat_map(|volume| &volume.attachments);
    let donor = |donor: &DonorStatus| {
        let health = match donor.health {
            DonorHealth::Alive if !donor.heard => "not heard of since the coordinator began".to_owned(),
            DonorHealth::Alive if donor.leaving => {
                format!("leaving, {} to move", show_bytes(donor.bytes_held))
            }
            DonorHealth::Alive if donor.bytes_held > donor.bytes_offered => {
                format!("gives back {}", show_bytes(donor.bytes_held - donor.bytes_offered))
            }
            DonorHealth::Alive => "alive".to_owned(),
            DonorHealth::Lost => format!("gone (silent for {} s)", donor.silent_ms / 1000),
        };
        vec![
            donor.name.clone(),
            donor.host.clone(),
            donor.address.clone(),
            show_bytes(donor.bytes_total),
            show_bytes(donor.bytes_free),
            show_bytes(donor.bytes_used),
            health + &health::out_of_reach_of(donor.donor, attachments()),
        ]
    };
    let rows: Vec<_> = status.donors.iter().map(donor).collect();
    output::table(&["DONOR", "HOST", "ADDRESS", "LENDS", "FREE", "IN USE", "HEALTH"], &rows);
    output::line("");
    print_volumes(&status.volumes);
    print_unwell(&status.volumes);
    print_findings(&status);
    print_unreachable(&status);
    Ok(())
}

/// What the clients' checksums and scrubs found.
fn print_findings(status: &PoolStatus) {
    let name_of = |id: DonorId| {
        let donor = status.donors.iter().find(|donor| donor.donor == id);
        donor.map_or_else(|| id.to_string(), |donor| donor.name.clone())
    };
    for volume in &status.volumes {
        for finding in volume.attachments.iter().flat_map(|a| health::findings(&a.report, name_of)) {
            output::line(&format!("volume {}: {finding}", volume.name));
        }
    }
}

/// What attached clients cannot reach, though the coordinator may.
fn print_unreachable(status: &PoolStatus) {
    for volume in &status.volumes {
        for attachment in &volume.attachments {
            for (id, why) in &attachment.lost {
                let donor = status.donors.iter().find(|donor| donor.donor == *id);
                let name = donor.map_or_else(|| id.to_string(), |donor| donor.name.clone());
                let said = health::out_of_reach(attachment, &name, why);
                output::line(&format!("volume {}: {} {said}", volume.name, attachment.holder));
            }
        }
    }
}

pub async fn show(options: cli::Named) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let detail = volume(&pool, Call::Show { name: options.name }).await?;
    if options.json.json {
        return output::json(&detail);
    }
    let VolumeStatus { name, volume, size, redundancy, unit, epoch, follow, .. } = &detail.status;
    output::line(&format!("volume      {name} ({volume}), epoch {epoch}"));
    output::line(&format!("size        {size} bytes ({})", show_bytes(*size)));
    let follow = if *follow { ", follows the pool" } else { "" };
    output::line(&format!("redundancy  {redundancy}, unit {}{follow}", show_bytes(u64::from(*unit))));
    output::line(&format!("health      {}", health::word(&detail.status)));
    if let Some(line) = health::line(&detail.status) {
        output::line(&format!("            {line}"));
    }
    let name_of =
        |id: DonorId| detail.map.routes.get(&id).map_or_else(|| id.to_string(), |route| route.name.clone());
    for attachment in &detail.status.attachments {
        let mode = if attachment.read_only { "read-only" } else { "read-write" };
        output::line(&format!("attached    {mode} by {}", health::attached(attachment)));
        for (id, why) in &attachment.lost {
            output::line(&format!("            {}", health::out_of_reach(attachment, &name_of(*id), why)));
        }
        let read_ahead = health::read_ahead(&attachment.report);
        for finding in health::findings(&attachment.report, name_of).into_iter().chain(read_ahead) {
            output::line(&format!("            {finding}"));
        }
    }
    let mut routes: Vec<_> = detail.map.routes.iter().collect();
    routes.sort_by_cached_key(|(_, route)| output::natural(&route.name));
    for (id, route) in routes {
        let slots = || detail.map.groups.iter().flat_map(|group| &group.slots);
        let held = slots().filter(|slot| slot.held.is_some_and(|held| held.donor == *id)).count();
        let filling = slots().filter(|slot| slot.filling.is_some_and(|filling| filling.donor == *id)).count();
        let filling = if filling > 0 { format!(", is being given {filling} more") } else { String::new() };
        let lost = if detail.status.lost_donors.contains(&route.name) { ", gone" } else { "" };
        let far = health::out_of_reach_of(*id, &detail.status.attachments);
        let held = show_count(held as u64, "extent");
        output::line(&format!(
            "donor       {} at {} holds {held}{filling}{lost}{far}",
            route.name, route.address
        ));
    }
    print_lost(&detail, &detail.lost, "");
    for (attachment, lost) in detail.status.attachments.iter().zip(&detail.lost_to) {
        // What all see is said once.
        if *lost != detail.lost {
            print_lost(&detail, lost, &format!(", as seen by {}", attachment.holder));
        }
    }
    Ok(())
}

fn print_lost(detail: &VolumeDetail, lost: &[LostRange], seen: &str) {
    for LostRange { donor, offset, len, stride, count } in lost {
        let route = donor.and_then(|donor| detail.map.routes.get(&donor));
        let with = route.map_or_else(String::new, |route| format!(" with donor {}", route.name));
        let each = if *count == 1 { String::new() } else { format!(", every {stride}, {count} times") };
        output::line(&format!("LOST        {len} bytes from {offset} on{each}{with}{seen}"));
    }
}
