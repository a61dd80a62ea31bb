// A plugin of Paddle for two devices "npu" in the memory of the host. It has no kernels of its own,
// so Paddle computes on the CPU what is placed on them.
#include <cstdlib>

#include "paddle/phi/backends/device_ext.h"
#define OK { return C_SUCCESS; }
static C_Status init() OK
static C_Status dev(const C_Device d) OK
static C_Status cs(const C_Device d, C_Stream* s) { *s = (C_Stream)malloc(1); return C_SUCCESS; }
static C_Status ds(const C_Device d, C_Stream s) OK
static C_Status scb(const C_Device d, C_Stream s, C_Callback cb, void* u) OK
static C_Status ce(const C_Device d, C_Event* s) { *s = (C_Event)malloc(1); return C_SUCCESS; }
static C_Status re(const C_Device d, C_Stream s, C_Event e) OK
static C_Status de(const C_Device d, C_Event e) OK
static C_Status swe(const C_Device d, C_Stream s, C_Event e) OK
static C_Status alloc(const C_Device d, void** p, size_t n) { *p = malloc(n); return *p ? C_SUCCESS : C_FAILED; }
static C_Status dealloc(const C_Device d, void* p, size_t n) { free(p); return C_SUCCESS; }
static C_Status cpy(const C_Device d, void* a, const void* b, size_t n) { memcpy(a, b, n); return C_SUCCESS; }
static C_Status acpy(const C_Device d, C_Stream s, void* a, const void* b, size_t n) { memcpy(a, b, n); return C_SUCCESS; }
static C_Status count(size_t* c) { *c = 2; return C_SUCCESS; }
static C_Status list(size_t* l) { l[0] = 0; l[1] = 1; return C_SUCCESS; }
static C_Status stats(const C_Device d, size_t* t, size_t* f) { *t = *f = 4ul << 30; return C_SUCCESS; }
static C_Status chunk(const C_Device d, size_t* c) { *c = 1; return C_SUCCESS; }
static C_Status mx(const C_Device d, size_t* c) { *c = 1ul << 30; return C_SUCCESS; }
static C_Status ver(const C_Device d, size_t* c) { *c = 1; return C_SUCCESS; }
extern "C" void InitPlugin(CustomRuntimeParams* p) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(p);
  p->device_type = (char*)"npu";
  p->sub_device_type = (char*)"V1";
  C_DeviceInterface* i = p->interface;
  memset((void*)i, 0, sizeof(C_DeviceInterface));
  i->size = sizeof(C_DeviceInterface);
  i->initialize = init; i->finalize = init;
  i->init_device = dev; i->set_device = dev; i->deinit_device = dev;
  i->get_device = [](const C_Device d) -> C_Status { d->id = 0; return C_SUCCESS; };
  i->create_stream = cs; i->destroy_stream = ds; i->query_stream = ds; i->stream_add_callback = scb;
  i->create_event = ce; i->record_event = re; i->destroy_event = de; i->query_event = de;
  i->synchronize_device = dev; i->synchronize_stream = ds; i->synchronize_event = de; i->stream_wait_event = swe;
  i->device_memory_allocate = alloc; i->device_memory_deallocate = dealloc;
  i->host_memory_allocate = alloc; i->host_memory_deallocate = dealloc;
  i->memory_copy_h2d = cpy; i->memory_copy_d2h = cpy; i->memory_copy_d2d = cpy;
  i->async_memory_copy_h2d = acpy; i->async_memory_copy_d2h = acpy; i->async_memory_copy_d2d = acpy;
  i->get_device_count = count; i->get_device_list = list; i->device_memory_stats = stats;
  i->device_min_chunk_size = chunk; i->device_max_chunk_size = mx; i->device_max_alloc_size = mx;
  i->get_compute_capability = ver; i->get_runtime_version = ver; i->get_driver_version = ver;
}
