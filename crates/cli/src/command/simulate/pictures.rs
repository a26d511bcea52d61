//! Sweeps as pictures, each legible on its own: where a step's time goes, and what towers gain.

use std::path::Path;

use anyhow::Result;
use campanile_planner::simulate::{Point, Step, Variant, text::short};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What changes from point to point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Accelerators or CPU ranks.
    Ranks,
    /// Compression ratios.
    Ratio,
    /// Towers.
    Towers,
}

impl Axis {
    fn value(self, point: &Point<'_>) -> String {
        match self {
            Axis::Ranks => point.setting.ranks().to_string(),
            Axis::Ratio => point.setting.ratio.to_string(),
            Axis::Towers => point.setting.towers.to_string(),
        }
    }

    fn title(self, point: &Point<'_>) -> String {
        match self {
            Axis::Ranks => format!("{}s", point.setting.cluster.rank_noun),
            Axis::Ratio => "compression ratio".to_owned(),
            Axis::Towers => "towers".to_owned(),
        }
    }

    /// What is the same for all points, in words.
    fn rest(self, point: &Point<'_>) -> String {
        let setting = &point.setting;
        let ranks = format!("{} {}s", setting.ranks(), setting.cluster.rank_noun);
        let ratio = format!("compression ratio {}", setting.ratio);
        match self {
            Axis::Ranks => ratio,
            Axis::Ratio => format!("{ranks}, {} towers", setting.towers),
            Axis::Towers => format!("{ranks}, {ratio}"),
        }
    }
}

/// A part of a bar: its name, its colour, and its seconds.
type Part = (&'static str, RGBColor, fn(&Step) -> f64);

/// What of the exchanges and copies is not hidden; all hide alike.
fn shown(step: &Step, seconds: f64) -> f64 {
    let all = step.copies + step.in_host + step.cross_host + step.ids;
    if all > 0.0 { seconds * (1.0 - step.hidden / all) } else { 0.0 }
}

const PARTS: [Part; 6] = [
    ("dense network and modules", RGBColor(8, 81, 156), |step| step.network + step.modules),
    ("rows of tables", RGBColor(107, 174, 214), |step| step.rows),
    ("local copies", RGBColor(189, 189, 189), |step| shown(step, step.copies)),
    ("exchange inside hosts", RGBColor(253, 190, 110), |step| shown(step, step.in_host)),
    ("exchange between hosts", RGBColor(217, 72, 1), |step| shown(step, step.cross_host + step.ids)),
    ("sum of dense gradients", RGBColor(128, 100, 162), |step| step.reduce - step.reduce_hidden),
];

/// The variants that are drawn, with their names and colours.
const LINES: [(Variant, &str, RGBColor); 3] = [
    (Variant::Sptt, "SPTT", RGBColor(120, 120, 120)),
    (Variant::Shortened, "shortened vectors, flat network", RGBColor(217, 72, 1)),
    (Variant::Towers, "towers", RGBColor(8, 81, 156)),
];

const GRID: RGBColor = RGBColor(222, 222, 222);

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK)
}

fn at(style: TextStyle<'static>, across: HPos, down: VPos) -> TextStyle<'static> {
    style.pos(Pos::new(across, down))
}

/// Round numbers from 0 to at least `most`, about five of them.
fn ticks(most: f64) -> Vec<f64> {
    let rough = (most / 5.0).max(1e-9);
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|step| step * power >= rough).unwrap_or(10.0) * power;
    (0..=(most / step).ceil() as usize).map(|tick| tick as f64 * step).collect()
}

/// The axis on the left, with lines across.
fn scale(area: &Area<'_>, frame: &Frame, ticks: &[f64], unit: &str) -> Result<()> {
    for &tick in ticks {
        let y = frame.y(tick);
        area.draw(&PathElement::new(vec![(frame.left, y), (frame.right, y)], GRID.stroke_width(1)))?;
        let digits = if ticks.iter().all(|tick| tick.fract() == 0.0) { 0 } else { 1 };
        let label = format!("{tick:.digits$}{unit}");
        area.draw(&Text::new(label, (frame.left - 8, y), at(font(13), HPos::Right, VPos::Center)))?;
    }
    Ok(())
}

/// Where a panel lies, and what its height means.
struct Frame {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    most: f64,
}

impl Frame {
    fn y(&self, value: f64) -> i32 {
        self.bottom - (value / self.most * f64::from(self.bottom - self.top)).round() as i32
    }

    /// The middle of the `index`-th of `count` places.
    fn x(&self, index: usize, count: usize) -> i32 {
        self.left + ((index as f64 + 0.5) / count as f64 * f64::from(self.right - self.left)).round() as i32
    }
}

/// Where the time of a step goes: three bars a point, flat, SPTT and towers.
pub fn steps(path: &Path, points: &[Point<'_>], axis: Axis) -> Result<()> {
    let Some(first) = points.first() else { return Ok(()) };
    let bars = [(Variant::Flat, "flat"), (Variant::Sptt, "SPTT"), (Variant::Towers, "towers")];
    let place = (900 / points.len().max(1) as i32).clamp(110, 170);
    let (left, legend) = (80, 230);
    let right = left + place * points.len() as i32;
    let area = SVGBackend::new(path, ((right + legend) as u32, 560)).into_drawing_area();
    area.fill(&WHITE)?;
    let seconds = |point: &Point<'_>| bars.map(|(variant, _)| point.step(variant).seconds());
    let most = points.iter().flat_map(seconds).fold(0.0, f64::max) * 1e3;
    let ticks = ticks(most);
    let most = ticks.last().copied().unwrap_or(1.0).max(most * 1.04);
    let frame = Frame { left, right, top: 90, bottom: 470, most };
    let setting = &first.setting;
    let title = format!("Where a step's time goes: {} on {}", setting.workload.name, setting.cluster.name);
    area.draw(&Text::new(title, (24, 18), font(21)))?;
    let words = format!(
        "milliseconds of a step, simulated; {} samples each; {}; what hides behind computing is left out",
        setting.workload.local_batch,
        axis.rest(first)
    );
    area.draw(&Text::new(words, (24, 48), font(13)))?;
    scale(&area, &frame, &ticks, "")?;
    let width = place * 26 / 100;
    for (index, point) in points.iter().enumerate() {
        let middle = frame.x(index, points.len());
        for (bar, (variant, name)) in bars.into_iter().enumerate() {
            let x = middle + (bar as i32 - 1) * (width + 4) - width / 2;
            stack(&area, &frame, (x, width), point.step(variant))?;
            let style = at(font(11), HPos::Center, VPos::Top);
            area.draw(&Text::new(name, (x + width / 2, frame.bottom + 6), style))?;
        }
        let value = axis.value(point);
        area.draw(&Text::new(value, (middle, frame.bottom + 24), at(font(15), HPos::Center, VPos::Top)))?;
    }
    let middle = i32::midpoint(left, right);
    area.draw(&Text::new(
        axis.title(first),
        (middle, frame.bottom + 50),
        at(font(15), HPos::Center, VPos::Top),
    ))?;
    for (index, (name, colour, _)) in PARTS.iter().rev().enumerate() {
        let (x, y) = (right + 18, 100 + index as i32 * 24);
        area.draw(&Rectangle::new([(x, y), (x + 16, y + 16)], colour.filled()))?;
        area.draw(&Text::new(*name, (x + 24, y + 8), at(font(13), HPos::Left, VPos::Center)))?;
    }
    area.present()?;
    Ok(())
}

/// One bar, from the bottom upwards, with its sum above.
fn stack(area: &Area<'_>, frame: &Frame, (x, width): (i32, i32), step: &Step) -> Result<()> {
    let mut sum = 0.0;
    for (_, colour, of) in PARTS {
        let next = sum + of(step) * 1e3;
        let corners = [(x, frame.y(next)), (x + width, frame.y(sum))];
        area.draw(&Rectangle::new(corners, colour.filled()))?;
        sum = next;
    }
    let label = if sum >= 100.0 { format!("{sum:.0}") } else { format!("{sum:.1}") };
    let style = at(font(11), HPos::Center, VPos::Bottom);
    area.draw(&Text::new(label, (x + width / 2, frame.y(sum) - 3), style))?;
    Ok(())
}

/// What towers gain: a panel for every cluster, all with one scale.
pub fn speed_up(path: &Path, all: &[Vec<Point<'_>>], axis: Axis) -> Result<()> {
    let Some(first) = all.first().and_then(|points| points.first()) else { return Ok(()) };
    let (panel, left, gap) = (350, 70, 64);
    let width = left + all.len() as i32 * (panel + gap) + 10;
    let area = SVGBackend::new(path, (width.max(620) as u32, 520)).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("Speed-up over the flat exchange: {}", first.setting.workload.name);
    area.draw(&Text::new(title, (24, 18), font(21)))?;
    let words = format!("simulated; {}", axis.rest(first));
    area.draw(&Text::new(words, (24, 48), font(13)))?;
    for (index, (_, name, colour)) in LINES.iter().enumerate() {
        let (x, y) = (24 + [0, 80, 310][index], 80);
        area.draw(&PathElement::new(vec![(x, y), (x + 20, y)], colour.stroke_width(3)))?;
        area.draw(&Circle::new((x + 10, y), 4, colour.filled()))?;
        area.draw(&Text::new(*name, (x + 26, y), at(font(13), HPos::Left, VPos::Center)))?;
    }
    let gains = |point: &Point<'_>| LINES.map(|(variant, _, _)| point.speed_up(variant));
    let most = all.iter().flatten().flat_map(gains).fold(1.0, f64::max);
    let ticks = ticks(most);
    for (number, points) in all.iter().enumerate() {
        let start = left + number as i32 * (panel + gap);
        let most = ticks.last().copied().unwrap_or(2.0).max(most);
        let frame = Frame { left: start, right: start + panel, top: 130, bottom: 430, most };
        lines(&area, &frame, points, axis, &ticks)?;
    }
    area.present()?;
    Ok(())
}

fn lines(area: &Area<'_>, frame: &Frame, points: &[Point<'_>], axis: Axis, ticks: &[f64]) -> Result<()> {
    let Some(first) = points.first() else { return Ok(()) };
    scale(area, frame, ticks, "x")?;
    let even = frame.y(1.0);
    let ends = vec![(frame.left, even), (frame.right, even)];
    area.draw(&PathElement::new(ends, RGBColor(90, 90, 90).stroke_width(2)))?;
    let middle = i32::midpoint(frame.left, frame.right);
    let name = first.setting.cluster.name.clone();
    area.draw(&Text::new(name, (middle, frame.top - 8), at(font(16), HPos::Center, VPos::Bottom)))?;
    for (variant, _, colour) in LINES {
        let place = |(index, point): (usize, &Point<'_>)| {
            (frame.x(index, points.len()), frame.y(point.speed_up(variant)))
        };
        let places: Vec<(i32, i32)> = points.iter().enumerate().map(place).collect();
        area.draw(&PathElement::new(places.clone(), colour.stroke_width(3)))?;
        for place in places {
            area.draw(&Circle::new(place, 4, colour.filled()))?;
        }
    }
    for (index, point) in points.iter().enumerate() {
        let x = frame.x(index, points.len());
        let style = at(font(13), HPos::Center, VPos::Top);
        area.draw(&Text::new(axis.value(point), (x, frame.bottom + 8), style))?;
    }
    area.draw(&Text::new(
        axis.title(first),
        (middle, frame.bottom + 30),
        at(font(14), HPos::Center, VPos::Top),
    ))?;
    let last = points.last().unwrap_or(first);
    let ends = format!(
        "samples/s at {}: {} flat, {} with towers",
        axis.value(last),
        short(last.samples_per_second(Variant::Flat)),
        short(last.samples_per_second(Variant::Towers))
    );
    area.draw(&Text::new(ends, (middle, frame.bottom + 56), at(font(12), HPos::Center, VPos::Top)))?;
    Ok(())
}
