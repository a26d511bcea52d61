//! The one reader of time in this room.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point on the clock that never goes back.
pub fn now() -> Instant {
    Instant::now()
}

/// The same clock as the timers of connections read it, which a test can stop.
pub fn timer_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Microseconds since 1970, as the machine believes.
pub fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_micros() as u64
}

/// Microseconds from one point to another; 0 when the second is not later.
pub fn us_between(start: Instant, end: Instant) -> u64 {
    end.saturating_duration_since(start).as_micros() as u64
}
