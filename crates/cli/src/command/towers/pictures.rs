//! Two pictures, each legible on its own: affinities as a heat map, and features in the plane.

use std::path::Path;

use anyhow::Result;
use campanile_planner::towers::{Affinity, Proposal};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// Edges of a picture without its grid or axes: room for title, names and scale.
const LEFT: i32 = 110;
const TOP: i32 = 70;
const RIGHT: i32 = 120;
const BOTTOM: i32 = 110;

/// Colours that can be told apart, also in print; they begin again after the last.
const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 92, 0),
    RGBColor(0, 140, 90),
    RGBColor(190, 30, 60),
    RGBColor(120, 80, 180),
    RGBColor(120, 80, 50),
    RGBColor(210, 90, 170),
    RGBColor(90, 90, 90),
    RGBColor(150, 150, 0),
    RGBColor(0, 150, 190),
];

fn colour(tower: usize) -> RGBColor {
    COLOURS[tower % COLOURS.len()]
}

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK)
}

/// From light to dark through blue: dark is strong.
fn shade(share: f64) -> RGBColor {
    let stops = [(247, 251, 255), (158, 202, 225), (49, 130, 189), (8, 48, 107)];
    let place = share.clamp(0.0, 1.0) * (stops.len() - 1) as f64;
    let (first, part) =
        ((place as usize).min(stops.len() - 2), place - (place as usize).min(stops.len() - 2) as f64);
    let mix = |a: i32, b: i32| (f64::from(a) + part * f64::from(b - a)).round() as u8;
    let (from, to) = (stops[first], stops[first + 1]);
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

/// Affinities of all pairs, features in the order of their towers, towers framed.
pub fn heat_map(path: &Path, affinity: &Affinity, partition: &[usize], names: &[&str]) -> Result<()> {
    let count = names.len();
    let cell = (760 / count.max(1) as i32).clamp(6, 40);
    let side = cell * count as i32;
    let size = ((LEFT + side + RIGHT) as u32, (TOP + side + BOTTOM) as u32);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|feature| (partition[*feature], *feature));
    let pairs = || (0..count).flat_map(|i| (0..i).map(move |j| (i, j)));
    let least = pairs().map(|(i, j)| affinity.at(i, j)).fold(1.0, f64::min);
    let greatest = pairs().map(|(i, j)| affinity.at(i, j)).fold(0.0, f64::max);
    let range = (greatest - least).max(1e-9);
    area.draw(&Text::new("Affinity of features, framed by tower", (LEFT, 18), font(22)))?;
    let words = "how alike the directions of two features' vectors are in a trained probe, mean over samples";
    area.draw(&Text::new(words, (LEFT, 44), font(13)))?;
    for (row, &i) in order.iter().enumerate() {
        for (column, &j) in order.iter().enumerate() {
            let corner = (LEFT + column as i32 * cell, TOP + row as i32 * cell);
            let fill =
                if i == j { RGBColor(225, 225, 225) } else { shade((affinity.at(i, j) - least) / range) };
            let far = (corner.0 + cell, corner.1 + cell);
            area.draw(&Rectangle::new([corner, far], fill.filled()))?;
        }
        let size = (cell - 2).clamp(6, 13);
        let middle = TOP + row as i32 * cell + cell / 2;
        let style = ("sans-serif", size).into_font().color(&colour(partition[i]));
        let left = style.pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(names[i].to_owned(), (LEFT - 6, middle), left))?;
        let below =
            ("sans-serif", size).into_font().transform(FontTransform::Rotate90).color(&colour(partition[i]));
        let across = LEFT + row as i32 * cell + cell / 2 + size / 2;
        area.draw(&Text::new(names[i].to_owned(), (across, TOP + side + 6), below))?;
    }
    let mut start = 0;
    while start < count {
        let tower = partition[order[start]];
        let end = start + order[start..].iter().take_while(|feature| partition[**feature] == tower).count();
        let [near, far] = [start, end].map(|place| (LEFT + place as i32 * cell, TOP + place as i32 * cell));
        area.draw(&Rectangle::new([near, far], colour(tower).stroke_width(3)))?;
        start = end;
    }
    scale(&area, (LEFT + side + 30, TOP), side.min(260), (least, greatest))?;
    area.present()?;
    Ok(())
}

/// A bar of colours with its numbers.
fn scale(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    (x, y): (i32, i32),
    height: i32,
    (least, greatest): (f64, f64),
) -> Result<()> {
    const STEPS: i32 = 50;
    for step in 0..STEPS {
        let share = 1.0 - f64::from(step) / f64::from(STEPS - 1);
        let (from, to) = (y + height * step / STEPS, y + height * (step + 1) / STEPS);
        area.draw(&Rectangle::new([(x, from), (x + 18, to)], shade(share).filled()))?;
    }
    for (share, value) in [(0.0, greatest), (0.5, 0.5 * (least + greatest)), (1.0, least)] {
        let style = font(13).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(
            format!("{value:.2}"),
            (x + 24, y + (share * f64::from(height)) as i32),
            style,
        ))?;
    }
    Ok(())
}

/// Features as points whose distances follow the affinities, coloured by tower, each with its name.
pub fn map(path: &Path, proposal: &Proposal, names: &[&str]) -> Result<()> {
    let (width, height) = (980, 720);
    let area = SVGBackend::new(path, (width, height)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new("Features in the plane, coloured by tower", (40, 18), font(22)))?;
    let words = format!(
        "features that interact lie close to each other; distances are met up to {:.0} % (stress of the map)",
        100.0 * proposal.map_stress
    );
    area.draw(&Text::new(words, (40, 44), font(13)))?;
    let extent = |axis: usize| {
        let values = proposal.map.iter().map(|point| point[axis]);
        let (least, most) =
            (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
        (least, (most - least).max(1e-9))
    };
    let extents = [extent(0), extent(1)];
    let span = extents[0].1.max(extents[1].1);
    let (plot_width, plot_height) = (760.0, 590.0);
    let at = |point: &[f64; 2]| {
        let x = 50.0 + (point[0] - extents[0].0 + 0.5 * (span - extents[0].1)) / span * (plot_width - 20.0);
        let y = 90.0 + (point[1] - extents[1].0 + 0.5 * (span - extents[1].1)) / span * (plot_height - 20.0);
        (x as i32, y as i32)
    };
    area.draw(&Rectangle::new(
        [(36, 74), (36 + plot_width as i32 + 40, 700)],
        RGBColor(200, 200, 200).stroke_width(1),
    ))?;
    let mut taken: Vec<(i32, i32, i32)> = Vec::new();
    for (feature, point) in proposal.map.iter().enumerate() {
        let (x, y) = at(point);
        let own = colour(proposal.partition[feature]);
        area.draw(&Circle::new((x, y), 7, own.filled()))?;
        let (x, y) = free_place(&taken, (x + 10, y), names[feature].len() as i32 * 7);
        taken.push((x, y, names[feature].len() as i32 * 7));
        let style = ("sans-serif", 13).into_font().color(&own).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(names[feature].to_owned(), (x, y), style))?;
    }
    for (tower, size) in proposal.score.sizes.iter().enumerate() {
        let y = 90 + tower as i32 * 24;
        area.draw(&Circle::new((862, y), 7, colour(tower).filled()))?;
        let style = font(14).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(format!("tower {tower} ({size})"), (876, y), style))?;
    }
    area.present()?;
    Ok(())
}

/// A place for a name near where it is wanted that covers no other name: further and further up and down.
fn free_place(taken: &[(i32, i32, i32)], (x, y): (i32, i32), width: i32) -> (i32, i32) {
    let covers = |at: i32| {
        taken.iter().any(|(other, row, wide)| (row - at).abs() < 13 && *other < x + width && x < other + wide)
    };
    let near = (0..20).flat_map(|step| [y - step * 4, y + step * 4]);
    (x, near.into_iter().find(|at| !covers(*at)).unwrap_or(y))
}
