//! The whole model, forward, backward and updates, in one plain file; for tests only
