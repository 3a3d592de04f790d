//! Between the kernel's events and a client that may be slow: bounded, oldest dropped,
//! and never silently.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Budget, Event, MAX_QUEUED_BYTES, take};
use crate::filesystem::fault::FileError;

/// Events one client may leave waiting.
pub(crate) const MAX_EVENTS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
    closed: AtomicBool,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// Events were dropped since the client was last told.
    lost: bool,
    ended: bool,
}

/// What a waiting client gets.
#[derive(Debug)]
pub(crate) enum Next {
    Event(Box<Event>),
    /// Some events were dropped. Told once.
    Lost,
    /// The watched directory is gone.
    Ended,
}

impl Queue {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            closed: AtomicBool::new(false),
            budget,
        }
    }

    pub(crate) fn push(&self, event: Event) {
        let mut state = self.lock();
        if state.events.len() == MAX_EVENTS {
            self.drop_oldest(&mut state);
        }
        let bytes = bytes(&event);
        while !take(&self.budget.queued_bytes, bytes, MAX_QUEUED_BYTES) {
            // Others may hold all of the bytes: then it is this event that is lost.
            if !self.drop_oldest(&mut state) {
                state.lost = true;
                drop(state);
                self.changed.notify_one();
                return;
            }
        }
        state.events.push_back(event);
        drop(state);
        self.changed.notify_one();
    }

    fn drop_oldest(&self, state: &mut State) -> bool {
        let Some(event) = state.events.pop_front() else {
            return false;
        };
        self.release(&event);
        state.lost = true;
        true
    }

    fn release(&self, event: &Event) {
        self.budget
            .queued_bytes
            .fetch_sub(bytes(event), Ordering::Relaxed);
    }

    /// Says that the kernel dropped events.
    pub(crate) fn lose(&self) {
        self.lock().lost = true;
        self.changed.notify_one();
    }

    /// Says that no more events will come.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Says that nobody listens any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) async fn next(&self) -> Next {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                if state.lost {
                    state.lost = false;
                    return Next::Lost;
                }
                if let Some(event) = state.events.pop_front() {
                    self.release(&event);
                    return Next::Event(Box::new(event));
                }
                if state.ended {
                    return Next::Ended;
                }
            }
            changed.await;
        }
    }

    pub(crate) fn drain(&self) -> Result<Vec<Event>, FileError> {
        let mut state = self.lock();
        if std::mem::take(&mut state.lost) {
            return Err(lost());
        }
        let events: Vec<Event> = state.events.drain(..).collect();
        drop(state);
        for event in &events {
            self.release(event);
        }
        Ok(events)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let events = std::mem::take(&mut self.lock().events);
        for event in &events {
            self.release(event);
        }
    }
}

/// What a client is told after events were dropped.
pub(crate) fn lost() -> FileError {
    FileError::Exhausted(format!(
        "watcher overflow: events came faster than they were read and the oldest were dropped (limit: {MAX_EVENTS} waiting events)"
    ))
}

fn bytes(event: &Event) -> usize {
    let entry = event.entry.as_ref().map_or(0, |entry| {
        512 + entry.path.len()
            + entry.name.len()
            + entry
                .metadata
                .iter()
                .map(|(key, value)| key.len() + value.len() + 64)
                .sum::<usize>()
    });
    128 + event.name.len() + entry
}

#[cfg(test)]
mod tests {
    use super::super::Change;
    use super::*;

    fn event(name: impl Into<String>) -> Event {
        Event {
            name: name.into(),
            change: Change::Create,
            entry: None,
        }
    }

    #[test]
    fn oldest_go_and_the_client_is_told_once() {
        let budget = Arc::new(Budget::default());
        let queue = Queue::new(Arc::clone(&budget));
        for number in 0..MAX_EVENTS + 3 {
            queue.push(event(number.to_string()));
        }
        assert!(matches!(queue.drain(), Err(FileError::Exhausted(_))));
        let events = queue.drain().unwrap();
        assert_eq!((events.len(), &*events[0].name), (MAX_EVENTS, "3"));
        assert!(queue.drain().unwrap().is_empty());
        assert_eq!(budget.queued_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bytes_of_all_queues_are_bounded() {
        let budget = Arc::new(Budget::default());
        let queues: Vec<Queue> = (0..20).map(|_| Queue::new(Arc::clone(&budget))).collect();
        for queue in &queues {
            for _ in 0..MAX_EVENTS {
                queue.push(event("n".repeat(4000)));
            }
        }
        assert!(budget.queued_bytes.load(Ordering::Relaxed) <= MAX_QUEUED_BYTES);
        let told = queues.iter().filter(|queue| queue.drain().is_err()).count();
        assert!(told >= 16, "{told}");
        drop(queues);
        assert_eq!(budget.queued_bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_waiting_client_wakes() {
        let queue = Arc::new(Queue::new(Arc::default()));
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.next().await }
        });
        tokio::task::yield_now().await;
        queue.push(event("a"));
        assert!(matches!(waiting.await.unwrap(), Next::Event(event) if event.name == "a"));
        queue.lose();
        assert!(matches!(queue.next().await, Next::Lost));
        queue.end();
        assert!(matches!(queue.next().await, Next::Ended));
    }
}
