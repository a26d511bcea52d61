//! Worlds by name: `preset = "live"` in `[run.data.world]` stands under the section's other keys.
//!
//! A preset is a ready world written out as TOML. A key that the user left out is read from it; in a table such as
//! `signal`, key by key. The saved job has every key and no preset, so a preset that changes later changes no old run.

use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use super::{
    effective::section_text,
    error::Problem,
    keys::{Form, Given, Key, Keys, Node, Value, words},
};
use crate::world::WorldSpec;

/// A world as a job describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct GivenWorld(pub(crate) WorldSpec);

words! {
    /// A ready world.
    pub(crate) enum Preset {
        /// Exactly a logistic regression on 8 one-id features of 50 ids and 4 dense inputs.
        Linear,
        /// Exactly a factorization machine with 4 factors on 6 one-id features of 40 ids.
        FactorizationMachine,
        /// 26 features in 8 hidden groups whose interactions carry most of the signal: for towers.
        PlantedGroups,
        /// Three domains, ids that come and go, drift, inputs that only a teacher sees, conversions: for a live
        /// stream.
        Live,
    }
}

impl Preset {
    fn world(self) -> WorldSpec {
        match self {
            Preset::Linear => WorldSpec::linear(),
            Preset::FactorizationMachine => WorldSpec::factorization_machine(),
            Preset::PlantedGroups => WorldSpec::planted_groups(),
            Preset::Live => WorldSpec::live(),
        }
    }
}

impl Value for GivenWorld {
    fn form() -> Form {
        let mut form = WorldSpec::form();
        if let Form::Section { keys, .. } = &mut form {
            let docs = "A ready world, from which the keys that are not given here are taken.";
            let preset = Form::Optional(Box::new(Preset::form()));
            keys.insert(0, Key { name: "preset", docs, form: preset, default: Some(Node::Absent) });
        }
        form
    }

    fn read(given: &Given<'_>) -> Result<GivenWorld, Problem> {
        let mut reader = given.reader()?;
        let Some(preset) = reader.given("preset") else {
            return WorldSpec::take(&mut reader).map(GivenWorld);
        };
        let text = section_text(&Preset::read(&preset)?.world());
        let under = DeTable::parse(&text).expect("what is written here can be read");
        let world = WorldSpec::take(&mut reader.over(under.get_ref()));
        world.map(GivenWorld)
    }

    fn write(&self) -> Node {
        self.0.write()
    }
}
