//! One line of the benchmark's table: a figure, what it is compared with, and what is demanded of it.
//!
//! Owns: how ratios are taken (round by round, then their median), and the refusal to show one that the
//! rounds do not agree upon. Never: measures. Invariant: what was refused has neither a ratio nor a verdict,
//! in the table and in JSON.
//!
//! What the machine does from round to round it does to both sides, and is not in their ratio. Seen: two
//! virtual processors that copied 25 GB/s in memory and 1.6 over loopback for some minutes, and 16 and 4.5
//! for the next, as if their host had put them on one core instead of two; the library's writes were 1.62 of
//! libnbd's before and 1.65 after.
//! Called by: the parts of the benchmark, `results`. Tests: below.

use std::fmt;

use serde_json::{Value, json};

use crate::figures::Series;

/// A ratio whose median may be off by more than this part of it says nothing. Of five rounds the middle half
/// may lie 20 % apart, of ten 28 %.
pub const UNCERTAINTY_MAX: f64 = 0.09;

/// What is demanded of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    RatioAtLeast(f64),
    RatioAtMost(f64),
    ValueAtMost(f64),
}

impl Bar {
    fn is_met(self, value: f64, ratio: Option<f64>) -> Option<bool> {
        match self {
            Self::RatioAtLeast(bar) => ratio.map(|ratio| ratio >= bar),
            Self::RatioAtMost(bar) => ratio.map(|ratio| ratio <= bar),
            Self::ValueAtMost(bar) => Some(value <= bar),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (sort, number) = text.rsplit_once(' ')?;
        let number = number.parse().ok()?;
        match sort {
            "ratio >=" => Some(Self::RatioAtLeast(number)),
            "ratio <=" => Some(Self::RatioAtMost(number)),
            "value <=" => Some(Self::ValueAtMost(number)),
            _ => None,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtLeast(bar) => write!(formatter, "ratio >= {bar}"),
            Self::RatioAtMost(bar) => write!(formatter, "ratio <= {bar}"),
            Self::ValueAtMost(bar) => write!(formatter, "value <= {bar}"),
        }
    }
}

/// A bar, if there is one, and the side of the set that shows what can be had: what the wire carries, or
/// iperf3 by as many hops.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub bar: Option<Bar>,
    pub limit: Option<&'static str>,
}

impl Demand {
    pub const NONE: Self = Self { bar: None, limit: None };
}

impl From<Bar> for Demand {
    fn from(bar: Bar) -> Self {
        Self { bar: Some(bar), limit: None }
    }
}

impl Bar {
    /// With the side that shows what can be had.
    pub fn within(self, limit: &'static str) -> Demand {
        Demand { bar: Some(self), limit: Some(limit) }
    }
}

/// What a row is made of.
#[derive(Clone, Debug)]
pub struct Figure<'a> {
    pub id: &'a str,
    pub what: String,
    pub unit: &'a str,
    pub value: &'a Series,
    /// Name and values, taken in the same rounds.
    pub peer: Option<(&'a str, &'a Series)>,
    /// What the machine could do, in the same rounds; for who asks what became of a ratio.
    pub probe: Option<&'a Series>,
    /// What can be had in its place: name and values, taken in the same rounds.
    pub limit: Option<(&'a str, &'a Series)>,
    pub bar: Option<Bar>,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub id: String,
    pub what: String,
    /// The median.
    pub value: f64,
    pub unit: String,
    pub peer: Option<String>,
    pub ratio: Option<f64>,
    /// What can be had in its place, if noise did not hide it: its name, and its ratio to the same peer.
    pub limit: Option<(String, f64)>,
    pub bar: Option<Bar>,
    /// None when there is no bar, or the machine was too noisy to say.
    pub ok: Option<bool>,
    pub spread: f64,
    pub samples: Samples,
}

/// What was measured, a value a round, and why no ratio is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    pub value: Vec<f64>,
    pub peer: Vec<f64>,
    pub limit: Vec<f64>,
    pub probe: Vec<f64>,
    pub refused: Option<String>,
}

impl<'a> Figure<'a> {
    /// One that stands for itself.
    pub fn new(id: &'a str, what: String, unit: &'a str, value: &'a Series) -> Self {
        Self { id, what, unit, value, peer: None, probe: None, limit: None, bar: None }
    }

    /// Judges it.
    #[track_caller]
    pub fn row(&self) -> Row {
        let value = self.value.median();
        assert!(value.is_finite(), "{}: nothing was measured", self.id);
        let ratios = self.peer.map(|(_, peer)| ratios_of(self.value, peer));
        let refused = match &ratios {
            Some(ratios) => noise("the ratio", ratios),
            None => noise("cheetah", self.value),
        };
        let ratio = ratios.filter(|_| refused.is_none()).map(|ratios| ratios.median());
        let ok = match refused {
            Some(_) => None,
            None => self.bar.and_then(|bar| bar.is_met(value, ratio)),
        };
        let list = |series: &Series| series.values().to_vec();
        let limit =
            self.limit.zip(self.peer).map(|((name, limit), (_, peer))| (name, ratios_of(limit, peer)));
        let limit = limit.filter(|(name, limit)| refused.is_none() && noise(name, limit).is_none());
        Row {
            id: self.id.to_owned(),
            what: self.what.clone(),
            value,
            unit: self.unit.to_owned(),
            peer: self.peer.map(|(name, _)| name.to_owned()),
            ratio,
            limit: limit.map(|(name, limit)| (name.to_owned(), limit.median())),
            bar: self.bar,
            ok,
            spread: self.value.spread(),
            samples: Samples {
                value: list(self.value),
                peer: self.peer.map(|(_, peer)| list(peer)).unwrap_or_default(),
                limit: self.limit.map(|(_, limit)| list(limit)).unwrap_or_default(),
                probe: self.probe.map(list).unwrap_or_default(),
                refused,
            },
        }
    }
}

/// Why a series says nothing, if so. A figure that is taken once has no rounds to differ.
fn noise(of: &str, series: &Series) -> Option<String> {
    let is_noisy = series.values().len() > 1 && series.uncertainty() > UNCERTAINTY_MAX;
    is_noisy.then(|| format!("too noisy: spread {:.0} % of {of}", series.spread() * 100.0))
}

/// The ratios that the rounds have by themselves.
#[track_caller]
fn ratios_of(value: &Series, peer: &Series) -> Series {
    let (value, peer) = (value.values(), peer.values());
    assert_eq!(value.len(), peer.len(), "both sides take part in every round");
    value.iter().zip(peer).map(|(value, peer)| value / peer).collect()
}

impl Row {
    pub fn limit_ratio(&self) -> Option<f64> {
        self.limit.as_ref().map(|(_, ratio)| *ratio)
    }

    /// Whether what can be had misses the bar, too.
    fn is_beyond(&self) -> bool {
        match (self.bar, self.limit_ratio()) {
            (Some(bar), Some(limit)) => bar.is_met(self.value, Some(limit)) == Some(false),
            _ => false,
        }
    }

    /// Whether it demands something that the noise hid.
    pub fn is_undecided(&self) -> bool {
        self.bar.is_some() && self.ok.is_none()
    }

    pub fn line(&self) -> String {
        let peer = self.samples.peer.iter().copied().collect::<Series>().median();
        let beside = match &self.peer {
            Some(name) => format!("{} {name}", figure(peer)),
            None => "-".to_owned(),
        };
        let ratio = match (&self.samples.refused, self.ratio) {
            (Some(why), _) => why.clone(),
            (None, Some(ratio)) => figure(ratio),
            (None, None) => "-".to_owned(),
        };
        let bar = self.bar.map(|bar| bar.to_string()).unwrap_or_default();
        let verdict = match self.ok {
            Some(true) => "met",
            Some(false) if self.is_beyond() => "**missed**, by the limit too",
            Some(false) => "**missed**",
            None => "",
        };
        let limit = self.limit.as_ref().map(|(name, ratio)| format!("{} {name}", figure(*ratio)));
        let limit = limit.unwrap_or_default();
        let (value, unit, spread) = (figure(self.value), &self.unit, self.spread * 100.0);
        let spread = if self.samples.value.len() > 1 { format!("{spread:.0} %") } else { "-".to_owned() };
        format!(
            "| {} | {value} {unit} | {spread} | {beside} | {ratio} | {limit} | {bar} | {verdict} |",
            self.what
        )
    }

    pub fn to_json(&self) -> Value {
        let samples = &self.samples;
        let limit = self.limit.as_ref().map(|(name, ratio)| json!({"name": name, "ratio": ratio}));
        json!({"id": self.id, "what": self.what, "value": self.value, "unit": self.unit, "peer": self.peer,
               "ratio": self.ratio, "limit": limit, "bar": self.bar.map(|bar| bar.to_string()), "ok": self.ok,
               "spread": self.spread,
               "samples": {"value": samples.value, "peer": samples.peer, "limit": samples.limit,
                           "probe": samples.probe, "refused": samples.refused}})
    }

    pub fn from_json(row: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let list = |name: &str| -> Vec<f64> {
            row["samples"][name].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        Some(Self {
            id: text(&row["id"])?,
            what: text(&row["what"])?,
            value: row["value"].as_f64()?,
            unit: text(&row["unit"])?,
            peer: text(&row["peer"]),
            ratio: row["ratio"].as_f64(),
            limit: text(&row["limit"]["name"]).zip(row["limit"]["ratio"].as_f64()),
            bar: row["bar"].as_str().and_then(Bar::parse),
            ok: row["ok"].as_bool(),
            spread: row["spread"].as_f64().unwrap_or(f64::INFINITY),
            samples: Samples {
                value: list("value"),
                peer: list("peer"),
                limit: list("limit"),
                probe: list("probe"),
                refused: text(&row["samples"]["refused"]),
            },
        })
    }
}

/// Three digits that say something.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        values.iter().copied().collect()
    }

    fn judged(value: &[f64], peer: &[f64], probe: &[f64], bar: Bar) -> Row {
        let (value, peer, probe) = (series(value), series(peer), series(probe));
        let peer = Some(("nbdkit", &peer));
        let what = "reads".to_owned();
        Figure { peer, probe: Some(&probe), bar: Some(bar), ..Figure::new("r", what, "GB/s", &value) }.row()
    }

    const STEADY: [f64; 3] = [5.0, 5.0, 5.0];

    #[test]
    fn a_limit_stands_beside_what_missed() {
        let line = |limit: &[f64]| {
            let (value, peer, limit) = (series(&[3.0; 3]), series(&[2.0; 3]), series(limit));
            let (what, peer, bar) =
                ("reads".to_owned(), Some(("nbdkit", &peer)), Some(Bar::RatioAtLeast(1.8)));
            let (value, limit, probe) = (&value, Some(("relay", &limit)), None);
            Figure { peer, probe, limit, bar, ..Figure::new("r", what, "GB/s", value) }.row().line()
        };
        let (beyond, within) = (line(&[3.4, 3.5, 3.5]), line(&[4.0; 3]));
        assert!(
            beyond.ends_with("| 1.50 | 1.75 relay | ratio >= 1.8 | **missed**, by the limit too |"),
            "{beyond}"
        );
        assert!(within.ends_with("| 1.50 | 2.00 relay | ratio >= 1.8 | **missed** |"), "{within}");
        let noisy = line(&[1.0, 8.0, 4.0]);
        assert!(noisy.ends_with("| 1.50 |  | ratio >= 1.8 | **missed** |"), "{noisy}");
        let (value, what) = (series(&[9.0]), "memory".to_owned());
        let much = Figure { bar: Some(Bar::ValueAtMost(8.0)), ..Figure::new("m", what, "MiB", &value) }.row();
        assert!(much.line().ends_with("| - |  | value <= 8 | **missed** |"), "{}", much.line());
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine slows down from round to round, the ratio stays: the ratio of the medians would be 1.5.
        let row = judged(&[12.0, 10.0, 9.0], &[6.0, 6.6, 5.5], &STEADY, Bar::RatioAtLeast(1.6));
        assert!((row.ratio.expect("a ratio") - 9.0 / 5.5).abs() < 1e-9);
        assert_eq!((row.ok, row.is_undecided()), (Some(true), false));
        let row = judged(&[12.0, 10.0, 9.0], &[6.0, 6.6, 5.5], &STEADY, Bar::RatioAtMost(1.6));
        assert_eq!(row.ok, Some(false));
        assert!(row.line().contains("| 1.64 |  | ratio <= 1.6 | **missed** |"), "{}", row.line());
    }

    #[test]
    fn noise_that_both_sides_do_not_share_refuses_the_ratio() {
        let (steady, noisy) = ([4.0, 4.0, 4.0], [4.0, 8.0, 1.0]);
        for (value, peer) in [(noisy, steady), (steady, noisy)] {
            let row = judged(&value, &peer, &STEADY, Bar::RatioAtLeast(0.1));
            assert_eq!((row.ratio, row.ok, row.is_undecided()), (None, None, true));
            let line = row.line();
            assert!(line.contains("too noisy: spread ") && !line.contains("met"), "{line}");
            assert!(row.to_json()["ratio"].is_null() && row.to_json()["ok"].is_null());
        }
        for (value, probe) in [(steady, STEADY), (noisy, STEADY), (noisy, [1.0, 5.0, 9.0])] {
            let row = judged(&value, &value, &probe, Bar::RatioAtLeast(1.0));
            assert_eq!((row.ratio, row.ok), (Some(1.0), Some(true)));
        }
    }

    #[test]
    fn a_figure_without_a_peer_is_refused_by_its_own_noise() {
        let value = series(&[4.0, 8.0, 1.0]);
        let bar = Some(Bar::ValueAtMost(9.0));
        let row = Figure { bar, ..Figure::new("m", "memory".to_owned(), "MiB", &value) }.row();
        assert!(row.is_undecided() && row.line().contains("of cheetah"), "{}", row.line());
    }

    #[test]
    fn a_row_survives_its_json() {
        let mut row = judged(&[3.0, 3.1, 3.0], &[2.0, 2.0, 2.1], &STEADY, Bar::ValueAtMost(3.5));
        (row.limit, row.samples.limit) = (Some(("relay".to_owned(), 1.25)), vec![2.5; 3]);
        assert_eq!(row.ok, Some(true));
        assert_eq!(Row::from_json(&row.to_json()), Some(row.clone()));
        let keys: Vec<String> = row.to_json().as_object().expect("an object").keys().cloned().collect();
        let expected =
            ["bar", "id", "limit", "ok", "peer", "ratio", "samples", "spread", "unit", "value", "what"];
        assert_eq!(keys, expected);
    }

    #[test]
    #[should_panic(expected = "both sides take part in every round")]
    fn a_side_that_left_out_a_round_is_no_peer() {
        judged(&[1.0, 1.0], &[1.0], &STEADY, Bar::RatioAtLeast(1.0));
    }
}
