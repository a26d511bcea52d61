//! The simulated teacher: the true logits of some time ago, with errors.
//!
//! It stands in for a trained one where an experiment must know how good, how biased and how late its teacher is.
//! What it says of a sample is a function of (world, seed, index), like everything else here.

use campanile_spec::{Batch, world::SimulatedTeacher};

use super::{
    World,
    impressions::Impressions,
    random::{draw, normal, unit},
};

/// Draws of an impression, after those of its outcomes.
const DRAW_SILENCE: u64 = 5;
/// One for each task.
const DRAW_ERROR: u64 = 6;

/// Writes the teacher's logits and ages of the impressions from `first` on; none where the world has no teacher.
pub(super) fn speak(world: &World, first: u64, seen: &Impressions, out: &mut Batch) {
    out.teacher_logits.clear();
    out.teacher_delays.clear();
    let Some(teacher) = world.spec.teacher else { return };
    let count = seen.keys.len();
    let rate = world.spec.samples_per_second;
    let ages = (first..).take(count).map(|index| age_seconds(&teacher, index as f64 / rate));
    out.teacher_delays.extend(ages.map(|age| age as f32));
    let length = world.spec.sample_count() as f64;
    let moment = |(sample, age): (usize, &f32)| {
        ((first + sample as u64) as f64 - f64::from(*age) * rate).max(0.0) / length
    };
    let known =
        Impressions { moments: out.teacher_delays.iter().enumerate().map(moment).collect(), ..seen.clone() };
    let parts = world.truth.parts(&known);
    for task in 0..world.spec.label_names().len() {
        out.teacher_logits.extend((0..count).map(|sample| {
            let (key, domain) = (seen.keys[sample], seen.domains[sample] as usize);
            if unit(draw(key, DRAW_SILENCE)) >= teacher.coverage {
                return f32::NAN;
            }
            let truth = match task {
                0 => world.calibration.click(&parts[sample], domain),
                _ => world.calibration.conversion(&parts[sample], domain),
            };
            let error = teacher.noise as f32 * normal(draw(key, DRAW_ERROR + task as u64));
            truth + teacher.bias as f32 + error
        }));
    }
}

/// How old the newest snapshot is, `now` seconds into the stream.
fn age_seconds(teacher: &SimulatedTeacher, now: f64) -> f64 {
    let newest = now - teacher.delay_seconds;
    if teacher.refresh_seconds > 0.0 {
        now - (newest / teacher.refresh_seconds).floor() * teacher.refresh_seconds
    } else {
        teacher.delay_seconds
    }
}
