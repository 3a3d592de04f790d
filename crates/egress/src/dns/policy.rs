//! What each sandbox may ask, and how often. Sandboxes are known by their address: the packet
//! filter drops what does not come from the slot's own.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Semaphore;

/// Queries of one sandbox that wait for upstream at once.
const MAX_QUERIES_PER_SOURCE: usize = 64;
/// TCP connections of one sandbox at once.
const MAX_CONNECTIONS_PER_SOURCE: usize = 8;
/// Queries per second one sandbox may forward for long; names are a way to carry data out.
const QUERIES_PER_SECOND: f64 = 100.0;
/// Queries one sandbox may forward at once after a rest: a package manager's start.
const QUERY_BURST: f64 = 400.0;

/// Whether a sandbox's queries leave the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Forwarded.
    Open,
    /// Refused at once.
    Closed,
}

/// The policies of all live sandboxes; a handle that clones. The node is its one writer.
#[derive(Debug, Clone, Default)]
pub struct Policies(Arc<Mutex<HashMap<Ipv4Addr, Arc<Source>>>>);

/// One sandbox as the resolver sees it. A policy that changes is a new source, so a query that
/// was on its way under the old one is recognised.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) policy: Policy,
    pub(super) queries: Arc<Semaphore>,
    pub(super) connections: Arc<Semaphore>,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Policies {
    /// From now on queries from `address` are answered by `policy`.
    pub fn set(&self, address: Ipv4Addr, policy: Policy) {
        let source = Arc::new(Source::new(policy, Instant::now()));
        self.lock().insert(address, source);
    }

    /// From now on queries from `address` are dropped, also those that wait for an answer.
    pub fn remove(&self, address: Ipv4Addr) {
        self.lock().remove(&address);
    }

    pub(super) fn get(&self, address: Ipv4Addr) -> Option<Arc<Source>> {
        self.lock().get(&address).cloned()
    }

    /// Whether `address` is still the sandbox, under the policy, that it was.
    pub(super) fn is_still(&self, address: Ipv4Addr, source: &Arc<Source>) -> bool {
        let now = self.get(address);
        now.is_some_and(|now| Arc::ptr_eq(&now, source))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Ipv4Addr, Arc<Source>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    fn new(policy: Policy, now: Instant) -> Self {
        Self {
            policy,
            queries: Arc::new(Semaphore::new(MAX_QUERIES_PER_SOURCE)),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS_PER_SOURCE)),
            bucket: Mutex::new(Bucket {
                tokens: QUERY_BURST,
                filled: now,
            }),
        }
    }

    /// Whether one more query may be forwarded at `now`.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(bucket.filled);
        bucket.filled = now;
        bucket.tokens =
            (bucket.tokens + passed.as_secs_f64() * QUERIES_PER_SECOND).min(QUERY_BURST);
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_rate_holds_and_recovers() {
        let start = Instant::now();
        let source = Source::new(Policy::Open, start);
        let asked = |now| (0..10_000).filter(|_| source.may_ask(now)).count();
        assert_eq!(asked(start), 400);
        assert_eq!(asked(start + Duration::from_secs(1)), 100);
        assert_eq!(asked(start + Duration::from_secs(1)), 0);
        assert_eq!(
            asked(start + Duration::from_secs(3600)),
            400,
            "no more than a burst"
        );
    }

    #[test]
    fn a_new_policy_is_a_new_source() {
        let policies = Policies::default();
        let address = Ipv4Addr::new(10, 0, 0, 2);
        assert!(policies.get(address).is_none());
        policies.set(address, Policy::Open);
        let source = policies.get(address).expect("set");
        assert!(policies.is_still(address, &source));
        policies.set(address, Policy::Closed);
        assert!(!policies.is_still(address, &source));
        policies.remove(address);
        assert!(policies.get(address).is_none());
    }
}
