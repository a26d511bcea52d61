//! Many settings at once, and all their figures as CSV.

use campanile_spec::{cluster::Cluster, workload::Workload};

use super::step::{Setting, SettingError, Step, Variant, step};

/// The most points of a sweep.
pub const POINTS_MAX: usize = 10_000;

/// A setting with its steps, in the order of [`Variant::ALL`].
#[derive(Debug, Clone)]
pub struct Point<'a> {
    /// What was simulated.
    pub setting: Setting<'a>,
    /// One for each variant.
    pub steps: [Step; Variant::ALL.len()],
}

impl<'a> Point<'a> {
    /// Simulates a setting.
    pub fn new(setting: Setting<'a>) -> Point<'a> {
        Point { setting, steps: Variant::ALL.map(|variant| step(&setting, variant)) }
    }

    /// The step of a variant.
    pub fn step(&self, variant: Variant) -> &Step {
        &self.steps[variant as usize]
    }

    /// How much faster than flat.
    pub fn speed_up(&self, variant: Variant) -> f64 {
        self.step(Variant::Flat).seconds() / self.step(variant).seconds()
    }

    /// Samples a second of the whole cluster.
    pub fn samples_per_second(&self, variant: Variant) -> f64 {
        self.setting.samples() / self.step(variant).seconds()
    }
}

/// What is asked: every combination of the lists. An empty list of towers chooses for each number of ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// Accelerators or CPU ranks.
    pub ranks: Vec<usize>,
    /// Towers.
    pub towers: Vec<usize>,
    /// Compression ratios.
    pub ratios: Vec<f64>,
}

/// Simulates every combination.
///
/// # Errors
/// The first one that cannot be.
pub fn points<'a>(
    cluster: &'a Cluster,
    workload: &'a Workload,
    asked: &Asked,
) -> Result<Vec<Point<'a>>, SettingError> {
    let towers: Vec<Option<usize>> = match &asked.towers[..] {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let mut points = Vec::new();
    for &ranks in &asked.ranks {
        for &towers in &towers {
            for &ratio in &asked.ratios {
                points.push(Point::new(Setting::new((cluster, workload), ranks, towers, ratio)?));
            }
        }
    }
    Ok(points)
}

/// All figures, a line for each point and variant.
pub fn csv(points: &[Point<'_>]) -> String {
    let mut out = String::from(
        "model,cluster,ranks,hosts,towers,compression_ratio,variant,step_ms,network_ms,modules_ms,rows_ms,copies_ms,\
         in_host_ms,cross_host_ms,ids_ms,hidden_ms,reduce_ms,reduce_hidden_ms,exposed_ms,samples_per_second,speed_up,\
         cross_host_mb,tables_fit\n",
    );
    for point in points {
        let setting = &point.setting;
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let fits = setting.fit().missing == 0.0;
        for variant in Variant::ALL {
            let step = point.step(variant);
            let times = [
                step.seconds(),
                step.network,
                step.modules,
                step.rows,
                step.copies,
                step.in_host,
                step.cross_host,
                step.ids,
                step.hidden,
                step.reduce,
                step.reduce_hidden,
                step.exposed(),
            ];
            let times: Vec<String> = times.iter().map(|seconds| format!("{:.6}", seconds * 1e3)).collect();
            out += &format!(
                "{},{},{},{},{},{},{},{},{:.0},{:.4},{:.6},{fits}\n",
                quoted(&setting.workload.name),
                quoted(&setting.cluster.name),
                setting.ranks(),
                setting.hosts,
                setting.towers,
                setting.ratio,
                variant.name(),
                times.join(","),
                point.samples_per_second(variant),
                point.speed_up(variant),
                step.cross_host_bytes / 1e6,
            );
        }
    }
    out
}
