//! A job that was not read from a job file: the one in a checkpoint's manifest, which anybody may have written.

use super::Job;

impl Job {
    /// Checks all that a job file is checked for, and that everything the job names is there.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn recheck(&self) -> Result<(), String> {
        let model = &self.run.model;
        let (tables, features) = (model.tables.len(), model.features.len());
        if let Some(feature) = model.features.iter().find(|feature| feature.table.0 as usize >= tables) {
            let (name, table) = (&feature.name, feature.table.0);
            return Err(format!("feature `{name}` reads table {table}, and there are {tables}"));
        }
        let columns = self.run.data.columns.sparse.len();
        if columns + model.followers.len() != features
            || model.followers.iter().any(|&place| place >= columns)
        {
            return Err(format!("{columns} columns do not make {features} features"));
        }
        let mut placed = model.towers.list.iter().flat_map(|tower| &tower.features);
        if let Some(place) = placed.find(|&&place| place >= features) {
            return Err(format!("a tower has feature {place}, and there are {features}"));
        }
        // Written out it is a job file, to which all the rules apply; what it then says must be what it said.
        let again = Job::parse(&self.effective_toml()).map_err(|error| error.to_string())?;
        if again.run == self.run { Ok(()) } else { Err("its parts do not fit each other".to_owned()) }
    }
}
