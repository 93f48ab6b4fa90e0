#include "rows.h"

#include "abi.h"

struct placement {
    unsigned int start, size;
};

#define DEVICE {KIND_DEVICE, 0, 0}
#define INSTANCE {KIND_INSTANCE, 0, 0}
#define COMPUTE {KIND_COMPUTE, 0, 0}
#define EVENTS {KIND_EVENTS, 0, 0}
#define SAMPLE {KIND_SAMPLE, 0, 0}
#define NUMBER {KIND_NUMBER, 0, 0}
#define PROFILE {KIND_PROFILE, 0, 0}
#define MASK {KIND_MASK, 0, 0}
#define WAIT {KIND_WAIT, 0, 0}
#define TEXT_IN {KIND_TEXT_IN, 0, 0}
#define TEXT_OUT {KIND_TEXT_OUT, 0, 0}, {KIND_LENGTH, 0, 0}
#define OUT(type) {KIND_OUT, sizeof(type), 0}
#define VERSIONED(type, version) {KIND_VERSIONED, sizeof(type), version}
#define IN(type) {KIND_IN, sizeof(type), 0}
#define LIST(type) {KIND_LIST, sizeof(type), 0}
#define WHOLE_LIST(type) {KIND_WHOLE_LIST, sizeof(type), 0}
#define COUNT {KIND_COUNT, 0, 0}
#define CAPACITY {KIND_CAPACITY, 0, 0}
#define DEVICE_OUT {KIND_DEVICE_OUT, 0, 0}
#define INSTANCE_OUT {KIND_INSTANCE_OUT, 0, 0}
#define COMPUTE_OUT {KIND_COMPUTE_OUT, 0, 0}
#define EVENTS_OUT {KIND_EVENTS_OUT, 0, 0}
#define SAMPLE_OUT {KIND_SAMPLE_OUT, 0, 0}
#define WORD OUT(unsigned int)
#define LONG OUT(unsigned long long)

#define ROW(name, ...) {#name, {__VA_ARGS__}}
#define DEVICE_WORD(name) ROW(name, DEVICE, WORD)
#define DEVICE_TEXT(name) ROW(name, DEVICE, TEXT_OUT)

const struct row rows[] = {
    ROW(nvmlInit, {KIND_END, 0, 0}),
    ROW(nvmlInit_v2, {KIND_END, 0, 0}),
    ROW(nvmlInitWithFlags, NUMBER),
    ROW(nvmlShutdown, {KIND_END, 0, 0}),
    ROW(nvmlSystemGetDriverVersion, TEXT_OUT),
    ROW(nvmlSystemGetNVMLVersion, TEXT_OUT),
    ROW(nvmlSystemGetCudaDriverVersion, WORD),
    ROW(nvmlSystemGetCudaDriverVersion_v2, WORD),
    ROW(nvmlSystemGetProcessName, NUMBER, TEXT_OUT),
    ROW(nvmlSystemGetDriverBranch, VERSIONED(nvmlSystemDriverBranchInfo_v1_t, 1), {KIND_LENGTH, 0, 0}),
    ROW(nvmlUnitGetCount, WORD),
    ROW(nvmlDeviceGetCount, WORD),
    ROW(nvmlDeviceGetCount_v2, WORD),

    ROW(nvmlDeviceGetHandleByIndex, NUMBER, DEVICE_OUT),
    ROW(nvmlDeviceGetHandleByIndex_v2, NUMBER, DEVICE_OUT),
    ROW(nvmlDeviceGetHandleBySerial, TEXT_IN, DEVICE_OUT),
    ROW(nvmlDeviceGetHandleByUUID, TEXT_IN, DEVICE_OUT),
    ROW(nvmlDeviceGetHandleByUUIDV, VERSIONED(nvmlUUID_v1_t, 1), DEVICE_OUT),
    ROW(nvmlDeviceGetHandleByPciBusId, TEXT_IN, DEVICE_OUT),
    ROW(nvmlDeviceGetHandleByPciBusId_v2, TEXT_IN, DEVICE_OUT),
    ROW(nvmlDeviceGetMigDeviceHandleByIndex, DEVICE, NUMBER, DEVICE_OUT),
    ROW(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, DEVICE, DEVICE_OUT),
    ROW(nvmlDeviceIsMigDeviceHandle, DEVICE, WORD),
    ROW(nvmlDeviceGetGpuInstanceId, DEVICE, WORD),
    ROW(nvmlDeviceGetComputeInstanceId, DEVICE, WORD),
    ROW(nvmlDeviceGetMaxMigDeviceCount, DEVICE, WORD),
    ROW(nvmlDeviceGetAttributes, DEVICE, OUT(nvmlDeviceAttributes_t)),
    ROW(nvmlDeviceGetAttributes_v2, DEVICE, OUT(nvmlDeviceAttributes_t)),

    DEVICE_TEXT(nvmlDeviceGetUUID),
    DEVICE_TEXT(nvmlDeviceGetName),
    DEVICE_TEXT(nvmlDeviceGetSerial),
    DEVICE_TEXT(nvmlDeviceGetBoardPartNumber),
    DEVICE_TEXT(nvmlDeviceGetVbiosVersion),
    DEVICE_TEXT(nvmlDeviceGetInforomImageVersion),
    ROW(nvmlDeviceGetGspFirmwareVersion, DEVICE, {KIND_OUT, GSP_FIRMWARE_VERSION_BYTES, 0}),
    ROW(nvmlDeviceGetGspFirmwareMode, DEVICE, WORD, WORD),

    DEVICE_WORD(nvmlDeviceGetIndex),
    DEVICE_WORD(nvmlDeviceGetMinorNumber),
    DEVICE_WORD(nvmlDeviceGetBrand),
    DEVICE_WORD(nvmlDeviceGetArchitecture),
    DEVICE_WORD(nvmlDeviceGetNumaNodeId),
    DEVICE_WORD(nvmlDeviceGetBoardId),
    DEVICE_WORD(nvmlDeviceGetModuleId),
    DEVICE_WORD(nvmlDeviceGetMultiGpuBoard),
    DEVICE_WORD(nvmlDeviceGetNumGpuCores),
    DEVICE_WORD(nvmlDeviceGetMemoryBusWidth),
    DEVICE_WORD(nvmlDeviceGetVirtualizationMode),
    DEVICE_WORD(nvmlDeviceGetPersistenceMode),
    DEVICE_WORD(nvmlDeviceGetComputeMode),
    DEVICE_WORD(nvmlDeviceGetDisplayMode),
    DEVICE_WORD(nvmlDeviceGetDisplayActive),
    DEVICE_WORD(nvmlDeviceGetPerformanceState),
    DEVICE_WORD(nvmlDeviceGetPowerState),
    DEVICE_WORD(nvmlDeviceGetPowerUsage),
    DEVICE_WORD(nvmlDeviceGetPowerManagementMode),
    DEVICE_WORD(nvmlDeviceGetPowerManagementLimit),
    DEVICE_WORD(nvmlDeviceGetPowerManagementDefaultLimit),
    DEVICE_WORD(nvmlDeviceGetEnforcedPowerLimit),
    DEVICE_WORD(nvmlDeviceGetFanSpeed),
    DEVICE_WORD(nvmlDeviceGetNumFans),
    DEVICE_WORD(nvmlDeviceGetCurrPcieLinkGeneration),
    DEVICE_WORD(nvmlDeviceGetCurrPcieLinkWidth),
    DEVICE_WORD(nvmlDeviceGetMaxPcieLinkGeneration),
    DEVICE_WORD(nvmlDeviceGetMaxPcieLinkWidth),
    DEVICE_WORD(nvmlDeviceGetPcieReplayCounter),
    DEVICE_WORD(nvmlDeviceGetAccountingMode),
    DEVICE_WORD(nvmlDeviceGetInforomConfigurationChecksum),
    ROW(nvmlDeviceGetFanSpeed_v2, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetAddressingMode, DEVICE, VERSIONED(nvmlDeviceAddressingMode_v1_t, 1)),
    ROW(nvmlDeviceGetTotalEnergyConsumption, DEVICE, LONG),
    ROW(nvmlDeviceGetCurrentClocksEventReasons, DEVICE, LONG),
    ROW(nvmlDeviceGetSupportedClocksEventReasons, DEVICE, LONG),
    ROW(nvmlDeviceGetCurrentClocksThrottleReasons, DEVICE, LONG),
    ROW(nvmlDeviceGetSupportedClocksThrottleReasons, DEVICE, LONG),
    ROW(nvmlDeviceGetSupportedEventTypes, DEVICE, LONG),
    ROW(nvmlDeviceSetPersistenceMode, DEVICE, NUMBER),
    ROW(nvmlDeviceSetComputeMode, DEVICE, NUMBER),
    ROW(nvmlDeviceClearEccErrorCounts, DEVICE, NUMBER),
    ROW(nvmlDeviceGetCudaComputeCapability, DEVICE, WORD, WORD),
    ROW(nvmlDeviceGetPciInfo, DEVICE, OUT(nvmlPciInfo_t)),
    ROW(nvmlDeviceGetPciInfo_v2, DEVICE, OUT(nvmlPciInfo_t)),
    ROW(nvmlDeviceGetPciInfo_v3, DEVICE, OUT(nvmlPciInfo_t)),
    ROW(nvmlDeviceGetMemoryInfo, DEVICE, OUT(nvmlMemory_t)),
    ROW(nvmlDeviceGetMemoryInfo_v2, DEVICE, VERSIONED(nvmlMemory_v2_t, 2)),
    ROW(nvmlDeviceGetBAR1MemoryInfo, DEVICE, OUT(nvmlBAR1Memory_t)),
    ROW(nvmlDeviceGetUtilizationRates, DEVICE, OUT(nvmlUtilization_t)),
    ROW(nvmlDeviceGetEncoderUtilization, DEVICE, WORD, WORD),
    ROW(nvmlDeviceGetDecoderUtilization, DEVICE, WORD, WORD),
    ROW(nvmlDeviceGetJpgUtilization, DEVICE, WORD, WORD),
    ROW(nvmlDeviceGetOfaUtilization, DEVICE, WORD, WORD),
    ROW(nvmlDeviceGetTemperature, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetTemperatureV, DEVICE, VERSIONED(nvmlTemperature_v1_t, 1)),
    ROW(nvmlDeviceGetTemperatureThreshold, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetPowerManagementLimitConstraints, DEVICE, WORD, WORD),
    ROW(nvmlDeviceGetClockInfo, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetMaxClockInfo, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetApplicationsClock, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetDefaultApplicationsClock, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetClock, DEVICE, NUMBER, NUMBER, WORD),
    ROW(nvmlDeviceGetPcieThroughput, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetCpuAffinity, DEVICE, CAPACITY, LIST(unsigned long)),
    ROW(nvmlDeviceGetCpuAffinityWithinScope, DEVICE, CAPACITY, LIST(unsigned long), NUMBER),
    ROW(nvmlDeviceGetMemoryAffinity, DEVICE, CAPACITY, LIST(unsigned long), NUMBER),
    ROW(nvmlDeviceGetTopologyCommonAncestor, DEVICE, DEVICE, WORD),
    ROW(nvmlDeviceGetP2PStatus, DEVICE, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetNvLinkState, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetComputeRunningProcesses, DEVICE, COUNT, LIST(nvmlProcessInfo_v1_t)),
    ROW(nvmlDeviceGetComputeRunningProcesses_v2, DEVICE, COUNT, LIST(nvmlProcessInfo_v2_t)),
    ROW(nvmlDeviceGetComputeRunningProcesses_v3, DEVICE, COUNT, LIST(nvmlProcessInfo_v2_t)),
    ROW(nvmlDeviceGetGraphicsRunningProcesses, DEVICE, COUNT, LIST(nvmlProcessInfo_v1_t)),
    ROW(nvmlDeviceGetGraphicsRunningProcesses_v2, DEVICE, COUNT, LIST(nvmlProcessInfo_v2_t)),
    ROW(nvmlDeviceGetGraphicsRunningProcesses_v3, DEVICE, COUNT, LIST(nvmlProcessInfo_v2_t)),
    ROW(nvmlDeviceGetMPSComputeRunningProcesses, DEVICE, COUNT, LIST(nvmlProcessInfo_v1_t)),
    ROW(nvmlDeviceGetMPSComputeRunningProcesses_v2, DEVICE, COUNT, LIST(nvmlProcessInfo_v2_t)),
    ROW(nvmlDeviceGetMPSComputeRunningProcesses_v3, DEVICE, COUNT, LIST(nvmlProcessInfo_v2_t)),
    ROW(nvmlDeviceGetEccMode, DEVICE, WORD, WORD),
    ROW(nvmlDeviceGetDefaultEccMode, DEVICE, WORD),
    ROW(nvmlDeviceGetTotalEccErrors, DEVICE, NUMBER, NUMBER, LONG),
    ROW(nvmlDeviceGetMemoryErrorCounter, DEVICE, NUMBER, NUMBER, NUMBER, LONG),
    ROW(nvmlDeviceGetSramEccErrorStatus, DEVICE, VERSIONED(nvmlEccSramErrorStatus_v1_t, 1)),
    ROW(nvmlDeviceGetRemappedRows, DEVICE, WORD, WORD, WORD, WORD),
    ROW(nvmlDeviceGetRowRemapperHistogram, DEVICE, OUT(nvmlRowRemapperHistogramValues_t)),
    ROW(nvmlGpmQueryDeviceSupport, DEVICE, VERSIONED(nvmlGpmSupport_t, BARE_VERSION | 1)),
    ROW(nvmlDeviceGetFieldValues, DEVICE, CAPACITY, LIST(nvmlFieldValue_t)),
    ROW(nvmlDeviceGetGpuFabricInfo, DEVICE, OUT(nvmlGpuFabricInfo_t)),
    ROW(nvmlDeviceGetGpuFabricInfoV, DEVICE, VERSIONED(nvmlGpuFabricInfo_v2_t, 2)),
    ROW(nvmlDeviceGetGpuFabricInfoV, DEVICE, VERSIONED(nvmlGpuFabricInfo_v3_t, 3)),

    ROW(nvmlDeviceGetMigMode, DEVICE, WORD, WORD),
    ROW(nvmlDeviceSetMigMode, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetGpuInstanceProfileInfo, DEVICE, NUMBER, OUT(nvmlGpuInstanceProfileInfo_t)),
    ROW(nvmlDeviceGetGpuInstanceProfileInfoV, DEVICE, NUMBER, VERSIONED(nvmlGpuInstanceProfileInfo_v2_t, 2)),
    ROW(nvmlDeviceGetGpuInstanceProfileInfoV, DEVICE, NUMBER, VERSIONED(nvmlGpuInstanceProfileInfo_v3_t, 3)),
    ROW(nvmlDeviceGetGpuInstanceProfileInfoByIdV, DEVICE, PROFILE, VERSIONED(nvmlGpuInstanceProfileInfo_v2_t, 2)),
    ROW(nvmlDeviceGetGpuInstancePossiblePlacements, DEVICE, PROFILE, WHOLE_LIST(struct placement), WORD),
    ROW(nvmlDeviceGetGpuInstancePossiblePlacements_v2, DEVICE, PROFILE, WHOLE_LIST(struct placement), WORD),
    ROW(nvmlDeviceGetGpuInstanceRemainingCapacity, DEVICE, PROFILE, WORD),
    ROW(nvmlDeviceCreateGpuInstance, DEVICE, PROFILE, INSTANCE_OUT),
    ROW(nvmlDeviceCreateGpuInstanceWithPlacement, DEVICE, PROFILE, IN(struct placement), INSTANCE_OUT),
    ROW(nvmlDeviceGetGpuInstances, DEVICE, PROFILE, WHOLE_LIST(nvmlGpuInstance_t), WORD),
    ROW(nvmlDeviceGetGpuInstanceById, DEVICE, NUMBER, INSTANCE_OUT),
    ROW(nvmlGpuInstanceGetInfo, INSTANCE, OUT(nvmlGpuInstanceInfo_t)),
    ROW(nvmlGpuInstanceGetComputeInstanceProfileInfo, INSTANCE, NUMBER, NUMBER, OUT(nvmlComputeInstanceProfileInfo_t)),
    ROW(nvmlGpuInstanceGetComputeInstanceProfileInfoV, INSTANCE, NUMBER, NUMBER,
        VERSIONED(nvmlComputeInstanceProfileInfo_v2_t, 2)),
    ROW(nvmlGpuInstanceGetComputeInstanceProfileInfoV, INSTANCE, NUMBER, NUMBER,
        VERSIONED(nvmlComputeInstanceProfileInfo_v3_t, 3)),
    ROW(nvmlGpuInstanceGetComputeInstanceRemainingCapacity, INSTANCE, NUMBER, WORD),
    ROW(nvmlGpuInstanceGetComputeInstancePossiblePlacements, INSTANCE, NUMBER, WHOLE_LIST(struct placement), WORD),
    ROW(nvmlGpuInstanceCreateComputeInstance, INSTANCE, NUMBER, COMPUTE_OUT),
    ROW(nvmlGpuInstanceCreateComputeInstanceWithPlacement, INSTANCE, NUMBER, IN(struct placement), COMPUTE_OUT),
    ROW(nvmlGpuInstanceGetComputeInstances, INSTANCE, NUMBER, WHOLE_LIST(nvmlComputeInstance_t), WORD),
    ROW(nvmlGpuInstanceGetComputeInstanceById, INSTANCE, NUMBER, COMPUTE_OUT),
    ROW(nvmlComputeInstanceGetInfo, COMPUTE, OUT(nvmlComputeInstanceInfo_t)),
    ROW(nvmlComputeInstanceGetInfo_v2, COMPUTE, OUT(nvmlComputeInstanceInfo_t)),

    ROW(nvmlEventSetCreate, EVENTS_OUT),
    ROW(nvmlDeviceRegisterEvents, DEVICE, MASK, EVENTS),
    ROW(nvmlEventSetWait, EVENTS, OUT(nvmlEventData_t), WAIT),
    ROW(nvmlEventSetWait_v2, EVENTS, OUT(nvmlEventData_t), WAIT),
    ROW(nvmlEventSetFree, EVENTS),
    ROW(nvmlComputeInstanceDestroy, COMPUTE),
    ROW(nvmlGpuInstanceDestroy, INSTANCE),

    /* What came later stands at the end: the corpus counts rows. */
    DEVICE_WORD(nvmlDeviceGetAccountingBufferSize),
    DEVICE_WORD(nvmlDeviceGetAdaptiveClockInfoStatus),
    DEVICE_WORD(nvmlDeviceGetBusType),
    ROW(nvmlDeviceGetDriverModel_v2, DEVICE, WORD, WORD),
    DEVICE_WORD(nvmlDeviceGetGpuMaxPcieLinkGeneration),
    ROW(nvmlDeviceGetGpuOperationMode, DEVICE, WORD, WORD),
    DEVICE_WORD(nvmlDeviceGetHostVgpuMode),
    DEVICE_WORD(nvmlDeviceGetIrqNum),
    ROW(nvmlDeviceGetMaxCustomerBoostClock, DEVICE, NUMBER, WORD),
    ROW(nvmlDeviceGetMinMaxFanSpeed, DEVICE, WORD, WORD),
    ROW(nvmlDeviceGetNvLinkVersion, DEVICE, NUMBER, WORD),
    DEVICE_WORD(nvmlDeviceGetPcieLinkMaxSpeed),
    DEVICE_WORD(nvmlDeviceGetPcieSpeed),
    DEVICE_WORD(nvmlDeviceGetPowerSource),
    ROW(nvmlDeviceGetProcessUtilization, DEVICE, LIST(nvmlProcessUtilizationSample_t), COUNT, MASK),
    DEVICE_WORD(nvmlDeviceGetRetiredPagesPendingStatus),
    ROW(nvmlDeviceSetAccountingMode, DEVICE, NUMBER),
    ROW(nvmlDeviceSetEccMode, DEVICE, NUMBER),
    ROW(nvmlDeviceSetPowerManagementLimit, DEVICE, NUMBER),
    ROW(nvmlGpmSampleAlloc, SAMPLE_OUT),
    ROW(nvmlGpmSampleGet, DEVICE, SAMPLE),
    ROW(nvmlGpmMigSampleGet, DEVICE, NUMBER, SAMPLE),
    ROW(nvmlGpmMetricsGet, VERSIONED(nvmlGpmMetricsGet_t, BARE_VERSION | 1)),
    ROW(nvmlGpmSampleFree, SAMPLE),
};

const size_t row_count = sizeof rows / sizeof rows[0];
