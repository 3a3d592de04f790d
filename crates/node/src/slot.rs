//! Slots: a network namespace with its link, a control group and a shell in place. Made
//! ahead of need, used once, and then removed: nothing of one sandbox's network reaches the
//! next one.

use std::collections::HashSet;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use hearth_host::cgroup::{Group, GroupError, Layout};
use hearth_host::firewall::GROUP_CLOSED;
use hearth_host::link::{self, Links, SlotLink};
use hearth_runtime::{Runtime, Shell, ShellError, ShellPlan};
use tokio::sync::Notify;

use crate::instance::Instance;

/// A slot could not be made; nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlotError {
    #[error("all {slots} network slots are in use")]
    Exhausted { slots: u32 },
    #[error("making its network")]
    Network(#[source] io::Error),
    #[error("making its control group")]
    Group(#[source] GroupError),
    #[error(transparent)]
    Shell(#[from] ShellError),
}

/// A number that nobody else has until it is dropped.
#[derive(Debug)]
pub(crate) struct Number {
    n: u32,
    taken: Arc<Mutex<Numbers>>,
}

#[derive(Debug)]
struct Numbers {
    taken: HashSet<u32>,
    last: u32,
    count: u32,
}

impl Number {
    pub(crate) fn get(&self) -> u32 {
        self.n
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Ok(mut t) = self.taken.lock() {
            t.taken.remove(&self.n);
        }
    }
}

/// What a sandbox holds of the network and the control groups, whether made just now or
/// adopted.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) number: Number,
    pub(crate) address: Ipv4Addr,
    pub(crate) link: String,
    pub(crate) group: Group,
}

/// A slot with its shell.
#[derive(Debug)]
pub(crate) struct ReadySlot {
    pub(crate) slot: Slot,
    pub(crate) shell: Box<dyn Shell>,
}

/// Makes slots and keeps some ready.
#[derive(Debug)]
pub(crate) struct Slots {
    instance: Instance,
    layout: Layout,
    links: Links,
    runtime: Arc<dyn Runtime>,
    numbers: Arc<Mutex<Numbers>>,
    ready: Mutex<Vec<ReadySlot>>,
    want: usize,
    taken: Notify,
}

impl Slots {
    pub(crate) fn new(
        instance: &Instance,
        layout: &Layout,
        links: &Links,
        runtime: &Arc<dyn Runtime>,
        want: usize,
    ) -> Self {
        // Slot 0 is the resolver's /30.
        let numbers = Numbers {
            taken: HashSet::new(),
            last: 0,
            count: instance.slots(),
        };
        Self {
            instance: instance.clone(),
            layout: layout.clone(),
            links: links.clone(),
            runtime: Arc::clone(runtime),
            numbers: Arc::new(Mutex::new(numbers)),
            ready: Mutex::new(Vec::new()),
            want,
            taken: Notify::new(),
        }
    }

    /// Takes the lowest number after the last one given out, so that a number rests for as
    /// long as possible before it is used again.
    fn number(&self) -> Result<Number, SlotError> {
        let mut numbers = self
            .numbers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = numbers.count;
        let free = (1..count)
            .map(|step| (numbers.last + step - 1) % (count - 1) + 1)
            .find(|n| !numbers.taken.contains(n))
            .ok_or(SlotError::Exhausted { slots: count })?;
        numbers.taken.insert(free);
        numbers.last = free;
        Ok(Number {
            n: free,
            taken: Arc::clone(&self.numbers),
        })
    }

    /// Takes a given number: that of an adopted sandbox, or of what the sweep found.
    pub(crate) fn adopt(&self, n: u32) -> Option<Slot> {
        let mut numbers = self
            .numbers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if n == 0 || n >= numbers.count || !numbers.taken.insert(n) {
            return None;
        }
        numbers.last = numbers.last.max(n);
        drop(numbers);
        Some(self.describe(Number {
            n,
            taken: Arc::clone(&self.numbers),
        }))
    }

    fn describe(&self, number: Number) -> Slot {
        let n = number.get();
        Slot {
            address: self.instance.address(n),
            link: self.instance.link(n),
            group: Group::at(
                &self.layout,
                &self.instance.group_parent(),
                &Instance::group_name(n),
            ),
            number,
        }
    }

    /// A ready slot, or one made now.
    pub(crate) async fn take(&self) -> Result<ReadySlot, SlotError> {
        let ready = self
            .ready
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .pop();
        self.taken.notify_one();
        match ready {
            Some(slot) => Ok(slot),
            None => self.make().await,
        }
    }

    async fn make(&self) -> Result<ReadySlot, SlotError> {
        let slot = self.describe(self.number()?);
        match self.build(&slot).await {
            Ok(shell) => Ok(ReadySlot { slot, shell }),
            Err(e) => {
                self.release(slot).await;
                Err(e)
            }
        }
    }

    async fn build(&self, slot: &Slot) -> Result<Box<dyn Shell>, SlotError> {
        let n = slot.number.get();
        let net = SlotLink {
            outer: slot.link.clone(),
            gateway: self.instance.gateway(n),
            address: slot.address,
        };
        let at = self.instance.netns(n);
        let host = link::current_namespace().map_err(SlotError::Network)?;
        let (inner, inner_at) = (net.clone(), at.clone());
        blocking(move || link::make_inner(&inner_at, &inner, host))
            .await
            .map_err(SlotError::Network)?;
        self.links
            .finish_outer(&net, GROUP_CLOSED)
            .await
            .map_err(SlotError::Network)?;
        slot.group.create().map_err(SlotError::Group)?;
        Ok(self
            .runtime
            .shell(ShellPlan {
                group: slot.group.clone(),
                netns: at,
            })
            .await?)
    }

    /// Gives a slot back: its processes end, its link and namespace go. What fails is left
    /// to the sweep, which looks again.
    pub(crate) async fn release(&self, slot: Slot) {
        let group = slot.group.clone();
        let killed = blocking(move || Ok(group.kill_and_remove())).await;
        if let Ok(Err(error)) = killed {
            // `make` refuses a group that is still there, so the number does no harm.
            tracing::warn!(slot = slot.number.get(), %error, "a control group stays for the sweep");
        }
        if let Err(error) = self.links.delete(&slot.link).await {
            tracing::warn!(link = slot.link, %error, "a link stays for the sweep");
        }
        if let Err(error) = hearth_host::netns::remove(&self.instance.netns(slot.number.get())) {
            tracing::warn!(slot = slot.number.get(), %error, "a namespace stays for the sweep");
        }
    }

    /// Keeps `want` slots ready; runs for the life of the server.
    pub(crate) async fn keep_ready(self: Arc<Self>) {
        loop {
            let have = self
                .ready
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .len();
            if have >= self.want {
                self.taken.notified().await;
                continue;
            }
            match self.make().await {
                Ok(slot) => self
                    .ready
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .push(slot),
                Err(error) => {
                    tracing::error!(error = %chain(&error), "a slot could not be made ahead of need");
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// Gives all ready slots back; for an orderly end of everything.
    pub(crate) async fn drain(&self) {
        let ready = std::mem::take(
            &mut *self
                .ready
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        for ReadySlot { slot, shell } in ready {
            drop(shell);
            self.release(slot).await;
        }
    }
}

/// Runs blocking work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

/// An error and its sources on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        text.push_str(": ");
        text.push_str(&e.to_string());
        source = e.source();
    }
    text
}
