//! One rank's rows: storage, initialisation, optimizers, checkpoints
