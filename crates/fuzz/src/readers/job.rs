//! Job files and `live.toml`.

use campanile_live::file::LiveFile;
use campanile_spec::config::Job;

use crate::{
    campaign::Reader,
    model,
    mutate::{self, tree},
    random::Random,
};

/// Job files.
pub struct Jobs(Vec<Vec<u8>>);

impl Jobs {
    pub fn new() -> Jobs {
        let examples = [
            model::JOB,
            include_str!("../../../../examples/tiny.toml"),
            include_str!("../../../../examples/towers.toml"),
            include_str!("../../../../examples/low_precision.toml"),
            include_str!("../../../../examples/multi_task.toml"),
            include_str!("../../../../examples/criteo.toml"),
        ];
        Jobs(examples.map(|text| text.as_bytes().to_vec()).into())
    }
}

/// Spoils TOML: mostly its tree.
fn spoil(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    match random.below(4) {
        0 => mutate::text(bytes, other, random),
        _ => tree::toml(bytes, random),
    }
}

/// The text of a file; what is not UTF-8 is refused before anybody parses it.
fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

impl Reader for Jobs {
    fn name(&self) -> &'static str {
        "job"
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.0
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        spoil(bytes, other, random);
    }

    fn read(&mut self, _: usize, bytes: &[u8]) -> Result<(), String> {
        let job = Job::parse(text(bytes)?).map_err(|error| error.to_string())?;
        let again = Job::parse(&job.effective_toml());
        assert_eq!(again.as_ref(), Ok(&job), "a job comes back from its effective text");
        assert!(job.run.grains().count() > 0 && !job.run.hash().is_empty());
        Ok(())
    }
}

/// `live.toml`.
pub struct LiveFiles(Vec<Vec<u8>>);

impl LiveFiles {
    pub fn new() -> LiveFiles {
        LiveFiles(vec![include_bytes!("../../../../examples/live.toml").to_vec()])
    }
}

impl Reader for LiveFiles {
    fn name(&self) -> &'static str {
        "live-file"
    }

    fn seeds(&self) -> &[Vec<u8>] {
        &self.0
    }

    fn spoil(&self, _: usize, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        spoil(bytes, other, random);
    }

    fn read(&mut self, _: usize, bytes: &[u8]) -> Result<(), String> {
        let file = LiveFile::parse(text(bytes)?).map_err(|error| error.to_string())?;
        assert_eq!(file.windows_ms().len(), file.world.label_names().len());
        let _ = file.embedding_floats();
        Ok(())
    }
}
