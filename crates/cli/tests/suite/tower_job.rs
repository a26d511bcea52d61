//! A small training job with towers, as flat, by the towers' ways alone, or with their modules.

use std::path::{Path, PathBuf};

/// Writes the job: eight features dealt to so many towers, whose modules hand on half of the floats. `variant` is that of
/// `[run.towers]`, and `process` a line of `[process]`.
pub fn tower_job(directory: &Path, (variant, count): (&str, usize), process: &str) -> PathBuf {
    let tower = |tower: usize| {
        let features: Vec<String> =
            (tower..8).step_by(count).map(|feature| format!("\"sparse_{}\"", feature + 1)).collect();
        let features = features.join(", ");
        format!("[[run.towers.tower]]\nname = \"t{tower}\"\nfeatures = [{features}]\n")
    };
    let towers: String = (0..count).map(tower).collect();
    let home = directory.display();
    let job = format!(
        r#"
[run]
seed = 7
batch_size = 256
grains = 16
[run.data]
kind = "synthetic"
[run.data.world]
train_samples = 3_000
valid_samples = 300
test_samples = 300
dense_count = 3
sparse_count = 8
vocabulary = 200
hidden_groups = 4
[run.tables]
dim = 16
[run.model]
kind = "dlrm"
bottom = [16, 8]
top = [16]
[run.towers]
variant = "{variant}"
module = {{ kind = "ensemble", per_feature = 1, mixed = 0, width = 8 }}
{towers}
[run.exchange]
forward = "f16"
backward = "bf16"
[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = 0.05
[run.dense]
optimizer = "adam"
learning_rate = 0.01
norm_max = 1.0
[run.evaluate]
every_steps = 5
window_steps = 1
[process]
checkpoint_every_steps = 4
cache_dir = "{home}/cache"
output_dir = "{home}/output"
{process}
"#
    );
    let path = directory.join("job.toml");
    std::fs::write(&path, job).unwrap();
    path
}
