//! The payloads that a joiner reads and writes. Numbers are little-endian; features are bytes that it does not read.
//!
//! ```text
//!   impression   id u64 | features
//!   feedback     id u64 | task u16
//!   example      id u64 | tasks u16 | labels u32, a bit per task | features        time: that of the impression
//!   correction   id u64 | task u16 | in its window? u8                             the label is 1 after all
//! ```

/// Something was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impression<'a> {
    /// Unique; feedback names it.
    pub id: u64,
    /// What the model saw.
    pub features: &'a [u8],
}

/// Something followed an impression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feedback {
    /// The impression's.
    pub id: u64,
    /// What: the place of the task.
    pub task: u16,
}

/// An impression and what followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Example<'a> {
    /// The impression's.
    pub id: u64,
    /// How many tasks there are.
    pub tasks: u16,
    /// A bit per task.
    pub labels: u32,
    /// What the model saw.
    pub features: &'a [u8],
}

/// A label that became 1 after its example was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Correction {
    /// The impression's.
    pub id: u64,
    /// The task.
    pub task: u16,
    /// Whether it happened inside the task's window, and only its record was late.
    pub in_window: bool,
}

impl<'a> Impression<'a> {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(self.features);
    }

    /// Reads a payload.
    pub fn decode(payload: &'a [u8]) -> Option<Impression<'a>> {
        let (id, features) = payload.split_first_chunk()?;
        Some(Impression { id: u64::from_le_bytes(*id), features })
    }
}

impl Feedback {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.task.to_le_bytes());
    }

    /// Reads a payload.
    pub fn decode(payload: &[u8]) -> Option<Feedback> {
        let (id, rest) = payload.split_first_chunk()?;
        let (task, rest) = rest.split_first_chunk()?;
        rest.is_empty().then_some(Feedback { id: u64::from_le_bytes(*id), task: u16::from_le_bytes(*task) })
    }
}

impl<'a> Example<'a> {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.tasks.to_le_bytes());
        out.extend_from_slice(&self.labels.to_le_bytes());
        out.extend_from_slice(self.features);
    }

    /// Reads a payload.
    pub fn decode(payload: &'a [u8]) -> Option<Example<'a>> {
        let (id, rest) = payload.split_first_chunk()?;
        let (tasks, rest) = rest.split_first_chunk()?;
        let (labels, features) = rest.split_first_chunk()?;
        let (id, tasks) = (u64::from_le_bytes(*id), u16::from_le_bytes(*tasks));
        Some(Example { id, tasks, labels: u32::from_le_bytes(*labels), features })
    }

    /// Whether a task's label is 1.
    pub fn label(&self, task: u16) -> bool {
        self.labels & (1 << task) != 0
    }
}

impl Correction {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.task.to_le_bytes());
        out.push(u8::from(self.in_window));
    }

    /// Reads a payload.
    pub fn decode(payload: &[u8]) -> Option<Correction> {
        let (id, rest) = payload.split_first_chunk()?;
        let (task, rest) = rest.split_first_chunk()?;
        let &[in_window @ (0 | 1)] = rest else { return None };
        Some(Correction {
            id: u64::from_le_bytes(*id),
            task: u16::from_le_bytes(*task),
            in_window: in_window == 1,
        })
    }
}
