//! Plots as SVG: lines over a logarithmic axis, one chart or several below each other in one file.
//!
//! Never: figures that the caller has not. Invariants: a file is whole in itself, and well-formed whatever
//! the names are; labels of an axis that would touch are left out. Called by `cheetah model` and `simulate`,
//! and by the lab's benchmark. Tests: below.

use crate::quantities::show_number;
use std::fmt::Write;

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// With a dot at each point.
    Marked,
    /// Without dots.
    Plain,
    /// Without dots, in dashes.
    Dashed,
    /// Dots alone.
    Dots,
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// In the legend.
    pub name: String,
    /// By x, which is more than 0. With a logarithmic y those of 0 are left out.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
    /// Which of the colours; two lines of one colour belong together.
    pub colour: usize,
}

/// Lines over one logarithmic axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// What the axis below is.
    pub x: String,
    /// What the axis on the left is.
    pub y: String,
    /// Whether that is logarithmic too; else it begins at 0.
    pub log_y: bool,
    /// In the order of the legend.
    pub lines: Vec<Line>,
}

const COLOURS: [&str; 6] = ["#1b6ca8", "#d9822b", "#3c8d40", "#8e44ad", "#c0392b", "#555555"];
const WIDTH: f64 = 940.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 80.0;
const UPPER: f64 = 56.0;
const RIGHT: f64 = 660.0;
const LOWER: f64 = 320.0;
/// Steps of an axis that begins at 0.
const STEPS: u32 = 4;
/// More points than these are not all labelled, though there were room.
const POINTS_LABELLED_MAX: usize = 20;
/// Of a label, at most, and from one to the next.
const LABEL: f64 = 44.0;

impl Chart {
    /// A file of its own.
    #[must_use]
    pub fn svg(&self) -> String {
        page(std::slice::from_ref(self))
    }

    fn draw(&self, svg: &mut String) {
        let axes = Axes::of(self);
        text(svg, 10.0, 20.0, Anchor::Start, &self.title);
        text(svg, 10.0, UPPER - 14.0, Anchor::Start, &self.y);
        text(svg, RIGHT, HEIGHT - 18.0, Anchor::End, &self.x);
        for (value, label) in axes.y_ticks() {
            let y = axes.y_of(value);
            let _ =
                write!(svg, r##"<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1}" y2="{y:.1}" stroke="#ddd"/>"##);
            text(svg, LEFT - 8.0, y + 4.0, Anchor::End, &label);
        }
        for value in axes.x_ticks(self) {
            let x = axes.x_of(value);
            let _ = write!(
                svg,
                r##"<line x1="{x:.1}" x2="{x:.1}" y1="{LOWER}" y2="{:.1}" stroke="#444"/>"##,
                LOWER + 4.0
            );
            text(svg, x, LOWER + 18.0, Anchor::Middle, &show_number(value));
        }
        for (index, line) in self.lines.iter().enumerate() {
            axes.line(svg, line);
            axes.legend(svg, line, UPPER + 20.0 * index as f64);
        }
    }
}

/// Several charts, one below the other, in one file.
#[must_use]
pub fn page(charts: &[Chart]) -> String {
    let mut svg = head(WIDTH, HEIGHT * charts.len() as f64);
    for (index, chart) in charts.iter().enumerate() {
        let _ = write!(svg, r#"<g transform="translate(0 {})">"#, HEIGHT * index as f64);
        chart.draw(&mut svg);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

/// Where values are.
struct Axes {
    x_least: f64,
    x_most: f64,
    /// The lowest and the highest value that is labelled.
    y_least: f64,
    y_most: f64,
    log_y: bool,
}

impl Axes {
    fn of(chart: &Chart) -> Axes {
        let shown = |(_, y): &(f64, f64)| y.is_finite() && (!chart.log_y || *y > 0.0);
        let points = || chart.lines.iter().flat_map(|line| line.points.iter().copied().filter(shown));
        let x_least = points().map(|(x, _)| x).fold(f64::INFINITY, f64::min).clamp(1e-9, 1e300);
        let x_most = points().map(|(x, _)| x).fold(x_least, f64::max);
        let most = points().map(|(_, y)| y).fold(1e-9, f64::max);
        if !chart.log_y {
            let y_most = f64::from(STEPS) * round_up(most / f64::from(STEPS));
            return Axes { x_least, x_most, y_least: 0.0, y_most, log_y: false };
        }
        let least = points().map(|(_, y)| y).fold(most, f64::min);
        let (y_least, y_most) = (10_f64.powf(least.log10().floor()), 10_f64.powf(most.log10().ceil()));
        // A flat line has no decade of its own.
        let y_most = if y_most > y_least { y_most } else { 10.0 * y_least };
        Axes { x_least, x_most, y_least, y_most, log_y: true }
    }

    fn x_of(&self, x: f64) -> f64 {
        let decades = (self.x_most / self.x_least).log10().max(1e-9);
        LEFT + (x / self.x_least).log10() / decades * (RIGHT - LEFT)
    }

    fn y_of(&self, y: f64) -> f64 {
        let share = match self.log_y {
            true => (y / self.y_least).log10() / (self.y_most / self.y_least).log10(),
            false => y / self.y_most,
        };
        LOWER - share * (LOWER - UPPER)
    }

    /// Values with a line across the chart, and how they are called.
    fn y_ticks(&self) -> Vec<(f64, String)> {
        // Or 3 times 0.1 would have seventeen digits.
        let label = |value: f64| (value, format!("{}", (value * 1e6).round() / 1e6));
        if !self.log_y {
            let step = self.y_most / f64::from(STEPS);
            return (0..=STEPS).map(|number| label(step * f64::from(number))).collect();
        }
        let decades = (self.y_most / self.y_least).log10().round() as i32;
        let within: &[f64] = if decades <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let of = |decade: i32| within.iter().map(move |digit| digit * 10_f64.powi(decade));
        let values = (0..=decades).flat_map(of).map(|factor| self.y_least * factor);
        let values = values.filter(|value| *value <= self.y_most * 1.001);
        values.map(|value| (value, show_number(value))).collect()
    }

    /// The points of all lines, as far as their labels do not touch; of very many those that people count in,
    /// and the ends.
    fn x_ticks(&self, chart: &Chart) -> Vec<f64> {
        let mut values: Vec<f64> =
            chart.lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        if values.len() > POINTS_LABELLED_MAX {
            let ends = [self.x_least, self.x_most];
            values.retain(|value| ends.contains(value) || round_up(*value * 0.999) == *value);
        }
        let mut ticks: Vec<f64> = Vec::new();
        for value in values {
            let after = ticks.last().is_none_or(|last| self.x_of(value) - self.x_of(*last) >= LABEL);
            let is_last = value >= self.x_most;
            if after || is_last {
                if !after && ticks.len() > 1 {
                    ticks.pop();
                }
                ticks.push(value);
            }
        }
        ticks
    }

    fn line(&self, svg: &mut String, line: &Line) {
        let colour = COLOURS[line.colour % COLOURS.len()];
        let shown = |(_, y): &&(f64, f64)| y.is_finite() && (!self.log_y || *y > 0.0);
        let points: Vec<(f64, f64)> =
            line.points.iter().filter(shown).map(|(x, y)| (self.x_of(*x), self.y_of(*y))).collect();
        let dashes = if line.style == Style::Dashed { "6 4" } else { "none" };
        if line.style != Style::Dots {
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = write!(
                svg,
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>"#,
                path.join(" ")
            );
        }
        if matches!(line.style, Style::Marked | Style::Dots) {
            for (x, y) in points {
                let _ = write!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#);
            }
        }
    }

    fn legend(&self, svg: &mut String, line: &Line, y: f64) {
        let colour = COLOURS[line.colour % COLOURS.len()];
        let (from, to) = (RIGHT + 14.0, RIGHT + 38.0);
        if line.style != Style::Dots {
            let dashes = if line.style == Style::Dashed { "6 4" } else { "none" };
            let _ = write!(
                svg,
                r#"<line x1="{from}" x2="{to}" y1="{y:.1}" y2="{y:.1}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>"#
            );
        }
        if matches!(line.style, Style::Marked | Style::Dots) {
            let middle = (from + to) / 2.0;
            let _ = write!(svg, r#"<circle cx="{middle}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#);
        }
        text(svg, to + 8.0, y + 4.0, Anchor::Start, &line.name);
    }
}

/// The next number that people count in: 1, 2, 2.5 or 5, and zeros.
fn round_up(least: f64) -> f64 {
    let decade = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|digit| digit * decade)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(least)
}

/// Begins a file; `</svg>` ends it.
#[must_use]
pub fn head(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\"><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    )
}

/// Which end of a text is where it is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Its first letter.
    Start,
    /// Its middle.
    Middle,
    /// Its last letter.
    End,
}

/// Adds a text.
pub fn text(svg: &mut String, x: f64, y: f64, anchor: Anchor, words: &str) {
    let anchor = match anchor {
        Anchor::Start => "",
        Anchor::Middle => r#" text-anchor="middle""#,
        Anchor::End => r#" text-anchor="end""#,
    };
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // Writing to a String does not fail.
    let _ = write!(svg, r#"<text x="{x:.1}" y="{y:.1}"{anchor}>{words}</text>"#);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(log_y: bool, points: &[(f64, f64)], style: Style) -> Chart {
        let own = |text: &str| text.to_owned();
        let line = Line { name: own("a < b & c"), points: points.to_vec(), style, colour: 0 };
        Chart { title: own("t"), x: own("nodes"), y: own("ms"), log_y, lines: vec![line] }
    }

    #[test]
    fn lines_have_their_points_and_axes_their_numbers() {
        let svg = chart(false, &[(1.0, 1.0), (2.0, 2.0), (8.0, 3.0)], Style::Marked).svg();
        assert_eq!(svg.matches("<circle").count(), 3 + 1, "three points, and the legend's");
        // Up to the first of 1, 2, 2.5 and 5 that four steps need.
        assert!(
            [">0<", ">1<", ">2<", ">3<", ">4<", ">8<"].into_iter().all(|label| svg.contains(label)),
            "{svg}"
        );
        assert!(svg.contains("a &lt; b &amp; c"));
        assert_eq!([0.75, 1.0, 240.0, 2.1e-3].map(round_up), [1.0, 1.0, 250.0, 2.5e-3]);
    }

    #[test]
    fn a_logarithmic_axis_has_whole_decades_and_leaves_zeros_out() {
        let svg = chart(true, &[(1.0, 0.3), (10.0, 0.0), (1_000.0, 40.0)], Style::Dots).svg();
        assert_eq!(svg.matches("<circle").count(), 2 + 1);
        assert!([">0.1<", ">0.5<", ">100<"].into_iter().all(|label| svg.contains(label)), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn labels_do_not_touch_and_the_last_is_there() {
        let points: Vec<(f64, f64)> = (0..=13).map(|power| (f64::from(1 << power), 1.0)).collect();
        let mut chart = chart(true, &points, Style::Plain);
        chart.lines[0].points.push((10_000.0, 1.0));
        let axes = Axes::of(&chart);
        let ticks = axes.x_ticks(&chart);
        assert!(ticks.windows(2).all(|pair| axes.x_of(pair[1]) - axes.x_of(pair[0]) >= LABEL), "{ticks:?}");
        assert_eq!((ticks[0], ticks.last().copied()), (1.0, Some(10_000.0)));
    }

    #[test]
    fn a_page_without_points_is_well_formed() {
        for chart in [chart(true, &[], Style::Marked), chart(false, &[], Style::Dashed)] {
            let svg = page(&[chart.clone(), chart]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert_eq!((svg.matches("<g ").count(), svg.matches("</g>").count()), (2, 2));
        }
    }
}
