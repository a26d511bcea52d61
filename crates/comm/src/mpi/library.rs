//! The few calls of the MPI library that we use, made safe: the one place in this room with `unsafe`.
//!
//! A transfer owns its memory until the library has let go of it, so nothing else can touch or free it. Only the
//! thread that made the [`Library`] can call it, for it is neither `Send` nor `Sync`.

#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_int, c_void},
    marker::PhantomData,
    mem::{MaybeUninit, forget},
    ptr::null_mut,
    sync::Arc,
};

use mpi::ffi;

use crate::Buffer;

/// Messages up to this length are sent at once, without asking the receiver first.
///
/// Open MPI moves data only while it is called. A longer message waits for both sides to come by again and again, and
/// while ranks compute they come by seldom. One that is sent at once goes into the kernel's buffers, and the kernel
/// does not need us to move it on. So [`super::Settings`] cuts letters into pieces well below this length.
pub const EAGER_BYTES: usize = 1 << 20;

/// Open MPI's names for that, on networks of TCP.
const EAGER_VARIABLES: [&CStr; 3] = [
    c"OMPI_MCA_btl_tcp_eager_limit",
    c"OMPI_MCA_btl_tcp_rndv_eager_limit",
    c"OMPI_MCA_btl_tcp_max_send_size",
];

/// The initialised library.
pub struct Library {
    rank: usize,
    rank_count: usize,
    only_this_thread: PhantomData<*mut ()>,
}

/// A message that has arrived in part or in full, and that nobody else can receive any more.
pub struct Arrived {
    /// The rank it comes from.
    pub source: usize,
    /// Its length.
    pub bytes: usize,
    message: ffi::MPI_Message,
}

/// Memory under transfer.
enum Memory {
    Received(Buffer),
    Sent(Arc<Buffer>),
}

/// Transfers under way, each with a label of the caller.
pub struct Transfers<L> {
    requests: Vec<ffi::MPI_Request>,
    labels: Vec<(L, Memory)>,
    places: Vec<c_int>,
}

/// A transfer that has ended.
pub enum Ended<L> {
    /// The buffer is filled.
    Received(L, Buffer),
    /// The buffer is not needed any more for this transfer.
    Sent(L, Arc<Buffer>),
}

/// The library refused to start.
#[derive(Debug)]
pub struct Refused(pub &'static str);

impl Library {
    /// Starts the library; the calling thread is the one that may use it.
    pub fn start() -> Result<Library, Refused> {
        let (mut started, mut provided) = (0, 0);
        // SAFETY: `MPI_Initialized` may be called at any time, and the pointer is to a local.
        unsafe { ffi::MPI_Initialized(&mut started) };
        if started != 0 {
            return Err(Refused("MPI was started before in this process"));
        }
        let eager = CString::new(EAGER_BYTES.to_string()).unwrap_or_default();
        for variable in EAGER_VARIABLES {
            // What the user has set stays.
            // SAFETY: both are strings with their end, and no other thread reads the environment meanwhile: the only
            // one waits for this one's greeting.
            unsafe { libc::setenv(variable.as_ptr(), eager.as_ptr(), 0) };
        }
        // SAFETY: both pointers may be null since MPI 2, `provided` is a local, and MPI was not started before.
        let outcome = unsafe {
            ffi::MPI_Init_thread(null_mut(), null_mut(), ffi::RSMPI_THREAD_FUNNELED as c_int, &mut provided)
        };
        // SAFETY: reading a constant of the library.
        if outcome != 0 || provided < unsafe { ffi::RSMPI_THREAD_FUNNELED } as c_int {
            return Err(Refused("the MPI library cannot be called from a thread"));
        }
        let (mut rank, mut rank_count) = (0, 0);
        // SAFETY: MPI is started, and the pointers are to locals.
        unsafe {
            ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut rank);
            ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut rank_count);
        }
        Ok(Library { rank: rank as usize, rank_count: rank_count as usize, only_this_thread: PhantomData })
    }

    /// This process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes.
    pub fn rank_count(&self) -> usize {
        self.rank_count
    }

    /// Seconds since some moment.
    pub fn seconds(&self) -> f64 {
        // SAFETY: MPI is started.
        unsafe { ffi::RSMPI_Wtime() }
    }

    /// Takes the next message with this tag, from whomever, if one has arrived.
    pub fn arrived(&self, tag: u16) -> Option<Arrived> {
        let mut found = 0;
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: MPI is started; all pointers are to locals; `status` is read only where a message was found, and
        // then it is filled.
        unsafe {
            let mut message = ffi::RSMPI_MESSAGE_NULL;
            ffi::MPI_Improbe(
                ffi::RSMPI_ANY_SOURCE,
                c_int::from(tag),
                ffi::RSMPI_COMM_WORLD,
                &mut found,
                &mut message,
                status.as_mut_ptr(),
            );
            if found == 0 {
                return None;
            }
            let status = status.assume_init();
            let mut bytes = 0;
            ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut bytes);
            Some(Arrived { source: status.MPI_SOURCE as usize, bytes: bytes as usize, message })
        }
    }

    /// Ends the library in an orderly way; every rank must come here.
    pub fn finish(self) {
        // SAFETY: MPI is started, and `self` is gone afterwards.
        unsafe { ffi::MPI_Finalize() };
    }
}

impl<L> Transfers<L> {
    /// None under way.
    pub fn new() -> Transfers<L> {
        Transfers { requests: Vec::new(), labels: Vec::new(), places: Vec::new() }
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Starts to send a range of a buffer.
    ///
    /// # Panics
    /// If the range is outside the buffer, or longer than the library can count.
    pub fn send(
        &mut self,
        _library: &Library,
        to: usize,
        tag: u16,
        buffer: Arc<Buffer>,
        range: std::ops::Range<usize>,
        label: L,
    ) {
        let bytes = &buffer.bytes()[range];
        let count =
            c_int::try_from(bytes.len()).unwrap_or_else(|_| panic!("a piece of {} bytes", bytes.len()));
        // SAFETY: MPI is started; `bytes` lie in the heap memory of `buffer`, which nobody changes while it is shared
        // and which `labels` keeps until the request has ended (or for ever, see `drop`).
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            ffi::MPI_Isend(
                bytes.as_ptr().cast::<c_void>(),
                count,
                ffi::RSMPI_UINT8_T,
                to as c_int,
                c_int::from(tag),
                ffi::RSMPI_COMM_WORLD,
                &mut request,
            );
            request
        };
        self.requests.push(request);
        self.labels.push((label, Memory::Sent(buffer)));
    }

    /// Starts to receive a message into a buffer, which takes its length.
    pub fn receive(&mut self, _library: &Library, arrived: Arrived, mut buffer: Buffer, label: L) {
        buffer.resize(arrived.bytes);
        let mut message = arrived.message;
        // SAFETY: MPI is started; the buffer has room for the message, whose length was asked for; its heap memory
        // stays where it is while `labels` keeps the buffer, until the request has ended (or for ever, see `drop`).
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            ffi::MPI_Imrecv(
                buffer.bytes_mut().as_mut_ptr().cast::<c_void>(),
                arrived.bytes as c_int,
                ffi::RSMPI_UINT8_T,
                &mut message,
                &mut request,
            );
            request
        };
        self.requests.push(request);
        self.labels.push((label, Memory::Received(buffer)));
    }

    /// Lets the library work, and takes out what has ended.
    pub fn ended(&mut self, _library: &Library, mut each: impl FnMut(Ended<L>)) {
        if self.requests.is_empty() {
            return;
        }
        self.places.resize(self.requests.len(), 0);
        let mut count = 0;
        // SAFETY: MPI is started; the arrays have as many elements as is said.
        unsafe {
            ffi::MPI_Testsome(
                self.requests.len() as c_int,
                self.requests.as_mut_ptr(),
                &mut count,
                self.places.as_mut_ptr(),
                ffi::RSMPI_STATUSES_IGNORE,
            );
        }
        // A negative count means that no request was active, which cannot be: all of them are.
        let ended = &mut self.places[..usize::try_from(count).unwrap_or(0)];
        // From the back, so that places in front stay what they are.
        ended.sort_unstable_by(|a, b| b.cmp(a));
        for &place in ended.iter() {
            self.requests.swap_remove(place as usize);
            each(match self.labels.swap_remove(place as usize) {
                (label, Memory::Received(buffer)) => Ended::Received(label, buffer),
                (label, Memory::Sent(buffer)) => Ended::Sent(label, buffer),
            });
        }
    }
}

impl<L> Drop for Transfers<L> {
    /// Memory that the library may still read or write is never freed.
    fn drop(&mut self) {
        self.labels.drain(..).for_each(forget);
    }
}
