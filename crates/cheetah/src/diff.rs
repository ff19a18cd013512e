//! `cheetah diff`: what of a volume an overlay changes.
//! Never: reads what was changed, or judges whether it is the same as before. Tests: `lab/tests/overlay.rs`.

use crate::cli;
use crate::failure::Failure;
use crate::output;
use crate::pool::find;
use cheetah_client::{Options, Volume};
use cheetah_core::overlay::{Place, Run};
use cheetah_core::units::{show_bytes, show_count};
use cheetah_rim::volume::read_table;
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Report {
    overlay: String,
    base: String,
    /// Of the base, and of what tools see.
    bytes: u64,
    bytes_changed: u64,
    ranges: Vec<Range>,
}

/// Whole blocks of which tools wrote something, also where that was the same as before.
#[derive(Debug, Serialize)]
struct Range {
    offset: u64,
    len: u64,
    /// They were made zeros.
    zeros: bool,
}

pub async fn diff(options: cli::Diff) -> Result<(), Failure> {
    let pool = find(&options.pool).await?;
    let how = Options { read_only: true, raw: true, ..Options::default() };
    let attached = Volume::open(&pool, &options.name, &how).await?;
    let report = look(&attached, &options.name).await;
    // A lease that was not given back runs out by itself.
    let _ = attached.detach().await;
    let report = report?;
    if options.json.json {
        return output::json(&report);
    }
    let Report { base, bytes_changed, ranges, .. } = &report;
    for Range { offset, len, zeros } in ranges {
        output::line(&format!("{offset:>15} {len:>15}  {}", if *zeros { "zeros" } else { "changed" }));
    }
    let changed = show_bytes(*bytes_changed);
    let ranges = show_count(ranges.len() as u64, "range");
    output::line(&format!("{changed} of {base} changed in {}, in {ranges}: offset and bytes", options.name));
    Ok(())
}

async fn look(attached: &Volume, name: &str) -> Result<Report, Failure> {
    let Some(overlay) = attached.lease().granted.content.overlay.as_deref() else {
        return Err(Failure::usage(format!("volume '{name}' is no overlay: it has no other below it")));
    };
    let table = read_table(attached.handle(), overlay.of, overlay.size).await;
    let table = table
        .map_err(|why| Failure::failed(format!("what overlay '{name}' changes cannot be told: {why}")))?;
    let within = |run: Run| Range {
        offset: run.offset,
        len: run.len.min(overlay.size - run.offset),
        zeros: run.place == Place::Zeros,
    };
    let ranges: Vec<Range> = table.changes().map(within).collect();
    Ok(Report {
        overlay: name.to_owned(),
        base: overlay.base.clone(),
        bytes: overlay.size,
        bytes_changed: ranges.iter().map(|range| range.len).sum(),
        ranges,
    })
}
